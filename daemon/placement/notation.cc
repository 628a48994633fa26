#include "daemon/placement/notation.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtorch {
namespace {

using Words = std::vector<absl::string_view>;

struct Parsed {
  std::vector<Words> inputs;
  std::vector<Words> outputs;
  std::vector<std::pair<absl::string_view, ReduceOp>> reduced;
  Words full;
  std::vector<std::vector<int>> linear;
  std::vector<std::vector<int>> linearFloat;
  std::vector<std::vector<int>> moved;
  std::vector<int> addends;
  std::vector<int> unread;
  struct Size {
    absl::string_view argument;
    int output;
    int dim;
  };
  std::vector<Size> sizes;
};

Words wordsOf(absl::string_view text) { return absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty()); }

std::vector<Words> termsOf(absl::string_view text) {
  std::vector<Words> terms;
  for (const absl::string_view term : absl::StrSplit(text, ',')) terms.push_back(wordsOf(term));
  return terms;
}

bool readNumbers(const Words& words, std::vector<int>* numbers) {
  for (const absl::string_view word : words) {
    if (!absl::SimpleAtoi(word, &numbers->emplace_back())) return false;
  }
  return true;
}

bool readSets(absl::string_view text, std::vector<std::vector<int>>* sets) {
  for (const absl::string_view set : absl::StrSplit(text, '|')) {
    if (!readNumbers(wordsOf(set), &sets->emplace_back())) return false;
  }
  return true;
}

std::optional<ReduceOp> reduceOpOf(absl::string_view text) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    if (name(op) == text) return op;
  }
  return std::nullopt;
}

bool readSize(absl::string_view word, Parsed* parsed) {
  const std::vector<absl::string_view> sides = absl::StrSplit(word, '=');
  if (sides.size() != 2) return false;
  const std::vector<absl::string_view> place = absl::StrSplit(sides[1], '.');
  Parsed::Size size{sides[0], 0, -1};
  if (!absl::SimpleAtoi(place[0], &size.output)) return false;
  if (place.size() > 1 && !absl::SimpleAtoi(place[1], &size.dim)) return false;
  parsed->sizes.push_back(size);
  return true;
}

bool readSection(absl::string_view section, Parsed* parsed) {
  Words words = wordsOf(section);
  if (words.empty()) return true;
  const absl::string_view key = words[0];
  const absl::string_view rest = absl::StripAsciiWhitespace(absl::StripAsciiWhitespace(section).substr(key.size()));
  const Words after(words.begin() + 1, words.end());
  if (key == "full") {
    parsed->full = after;
    return true;
  }
  if (key == "linear") return readSets(rest, &parsed->linear);
  if (key == "linear-float") return readSets(rest, &parsed->linearFloat);
  if (key == "moved") return readSets(rest, &parsed->moved);
  if (key == "addend") return readNumbers(after, &parsed->addends);
  if (key == "unread") return readNumbers(after, &parsed->unread);
  if (key == "sizes") {
    return std::all_of(after.begin(), after.end(), [&](absl::string_view word) { return readSize(word, parsed); });
  }
  for (const absl::string_view word : words) {
    const std::vector<absl::string_view> sides = absl::StrSplit(word, ':');
    const std::optional<ReduceOp> op = sides.size() == 2 ? reduceOpOf(sides[1]) : std::nullopt;
    if (!op) return false;
    parsed->reduced.emplace_back(sides[0], *op);
  }
  return true;
}

std::optional<Parsed> parse(absl::string_view notation) {
  const std::vector<absl::string_view> sections = absl::StrSplit(notation, ';');
  const std::vector<absl::string_view> sides = absl::StrSplit(sections[0], "->");
  if (sides.size() != 2) return std::nullopt;
  Parsed parsed;
  parsed.inputs = termsOf(sides[0]);
  parsed.outputs = termsOf(sides[1]);
  for (std::size_t s = 1; s < sections.size(); ++s) {
    if (!readSection(sections[s], &parsed)) return std::nullopt;
  }
  return parsed;
}

// The names of a tensor's dimensions by its term: "b", "...2" (the third from the right of those that "..." stands
// for), or empty where the dimension stays whole.
absl::StatusOr<std::vector<std::string>> namesOf(const Words& term, std::size_t dims) {
  std::vector<std::string> names(dims);
  if (term.size() == 1 && term[0] == "*") return names;
  const auto dots = std::find(term.begin(), term.end(), "...");
  const auto before = static_cast<std::size_t>(dots - term.begin());
  const bool hasDots = dots != term.end();
  const std::size_t named = term.size() - (hasDots ? 1 : 0);
  if (dims > named && !hasDots) return absl::UnimplementedError(absl::StrCat("a tensor has ", dims, " dimensions"));
  const auto set = [&](std::size_t dim, absl::string_view word) {
    if (word != "1" && !absl::StartsWith(word, "[")) names[dim] = std::string(word);
  };
  // From the right: the words behind the dots, what the dots stand for, the words before them.
  std::size_t dim = dims;
  for (std::size_t w = term.size(); w > (hasDots ? before + 1 : 0) && dim > 0; --w) set(--dim, term[w - 1]);
  if (!hasDots) return names;
  const std::size_t batch = dims > named ? dims - named : 0;
  for (std::size_t b = 0; b < batch; ++b) names[--dim] = absl::StrCat("...", b);
  for (std::size_t w = before; w > 0 && dim > 0; --w) set(--dim, term[w - 1]);
  return names;
}

// The factors by name, as they appear.
class Names {
 public:
  explicit Names(Factors* factors) : factors_(factors) {}

  absl::Status add(const Words& term, const TensorMeta& meta, bool isOutput) {
    absl::StatusOr<std::vector<std::string>> names = namesOf(term, meta.shape.size());
    if (!names.ok()) return names.status();
    for (std::size_t d = 0; d < meta.shape.size(); ++d) {
      if ((*names)[d].empty()) continue;
      // What broadcasts has an extent of 1; where the others do not agree, the dimension stays whole.
      std::int64_t& extent = extents_.try_emplace((*names)[d], kUnknown).first->second;
      if (extent == kUnknown || extent == 1) {
        extent = meta.shape[d];
      } else if (meta.shape[d] != 1 && meta.shape[d] != extent) {
        extent = kDiffers;
      }
    }
    tensors_.push_back({*std::move(names), &meta, isOutput});
    return absl::OkStatus();
  }

  void finish() {
    for (const Tensor& tensor : tensors_) {
      std::vector<int> dims;
      for (std::size_t d = 0; d < tensor.names.size(); ++d) {
        const bool whole = tensor.names[d].empty() || extents_.at(tensor.names[d]) != tensor.meta->shape[d];
        dims.push_back(whole ? Factors::kWhole : factorOf(tensor.names[d]));
      }
      (tensor.isOutput ? factors_->outputs : factors_->inputs).push_back(std::move(dims));
    }
  }

  int factorOf(const std::string& name) {
    const auto [it, isNew] = factors_of_.try_emplace(name, 0);
    if (isNew) it->second = factors_->add();
    return it->second;
  }

 private:
  struct Tensor {
    std::vector<std::string> names;
    const TensorMeta* meta;
    bool isOutput;
  };
  static constexpr std::int64_t kUnknown = -1;
  static constexpr std::int64_t kDiffers = -2;
  Factors* factors_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::int64_t> extents_;
  std::map<std::string, int> factors_of_;
};

bool isTensor(const c10::Argument& argument) {
  const c10::Type* type = argument.type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
  return type->kind() == c10::TypeKind::TensorType;
}

}  // namespace

absl::Status checkNotation(absl::string_view notation) {
  const std::optional<Parsed> parsed = parse(notation);
  if (!parsed) return absl::InvalidArgumentError(absl::StrCat("not a placement rule: '", notation, "'"));
  std::set<absl::string_view> known;
  for (const auto* terms : {&parsed->inputs, &parsed->outputs}) {
    for (const Words& term : *terms) {
      std::set<absl::string_view> seen;
      for (const absl::string_view word : term) {
        known.insert(word);
        // Each rank would take a diagonal of its own block.
        if (word == "1" || absl::StartsWith(word, "[") || seen.insert(word).second) continue;
        return absl::InvalidArgumentError(absl::StrCat("a term has '", word, "' twice: '", notation, "'"));
      }
    }
  }
  Words named = parsed->full;
  for (const auto& [word, op] : parsed->reduced) named.push_back(word);
  for (const absl::string_view word : named) {
    if (known.contains(word)) continue;
    return absl::InvalidArgumentError(absl::StrCat("no term has '", word, "': '", notation, "'"));
  }
  return absl::OkStatus();
}

absl::Status checkTerms(absl::string_view notation, const c10::FunctionSchema& schema) {
  const std::optional<Parsed> parsed = parse(notation);
  if (!parsed) return absl::InvalidArgumentError(absl::StrCat("not a placement rule: '", notation, "'"));
  const auto tensors = static_cast<std::size_t>(
      std::count_if(schema.arguments().begin(), schema.arguments().end(),
                    [](const c10::Argument& argument) { return isTensor(argument) && !argument.is_out(); }));
  const auto tooMany = [&](const char* what, std::size_t terms, std::size_t has) {
    return absl::InvalidArgumentError(absl::StrCat("the rule has ", terms, " terms for ", what, ", ", schema.name(),
                                                   " has ", has, ": '", notation, "'"));
  };
  if (parsed->inputs.size() > tensors) return tooMany("tensor arguments", parsed->inputs.size(), tensors);
  const auto isList = [](const c10::Argument& result) { return result.type()->castRaw<c10::ListType>() != nullptr; };
  const std::vector<c10::Argument>& results = schema.returns();
  if (std::any_of(results.begin(), results.end(), isList)) return absl::OkStatus();
  if (parsed->outputs.size() > results.size()) return tooMany("results", parsed->outputs.size(), results.size());
  return absl::OkStatus();
}

absl::StatusOr<Factors> notationFactors(const RuleCall& call, absl::string_view notation) {
  const std::optional<Parsed> parsed = parse(notation);
  if (!parsed) return absl::InternalError(absl::StrCat("not a placement rule: '", notation, "'"));
  Factors factors;
  Names names(&factors);
  constexpr int kNone = -1;    // the argument is None
  constexpr int kNumber = -2;  // a number, not a tensor
  std::vector<int> inputOf;    // of each term
  for (std::size_t a = 0; a < call.arguments.size(); ++a) {
    if (call.schema.arguments()[a].is_out()) continue;
    const auto* tensor = call.arguments[a].as<TensorArg>();
    // Of an operator on lists, the schema's arguments are lists.
    if (tensor == nullptr && !isTensor(call.schema.arguments()[a])) continue;
    if (tensor == nullptr) {
      inputOf.push_back(call.arguments[a].isNone() ? kNone : kNumber);
      continue;
    }
    const std::size_t term = inputOf.size();
    if (term >= parsed->inputs.size()) {
      return absl::UnimplementedError(absl::StrCat("argument '", call.schema.arguments()[a].name(), "' is a tensor"));
    }
    const absl::Status added = names.add(parsed->inputs[term], *call.inputs[tensor->index], false);
    if (!added.ok()) return added;
    inputOf.push_back(static_cast<int>(tensor->index));
  }
  for (std::size_t o = 0; o < call.outputs.size(); ++o) {
    const Words& term = parsed->outputs[std::min(o, parsed->outputs.size() - 1)];
    const bool anyRank =
        std::find(term.begin(), term.end(), "...") != term.end() || (term.size() == 1 && term[0] == "*");
    if (!anyRank && term.size() != call.outputs[o]->shape.size()) {
      return absl::UnimplementedError(
          absl::StrCat("result ", o, " has ", call.outputs[o]->shape.size(), " dimensions"));
    }
    if (const absl::Status added = names.add(term, *call.outputs[o], true); !added.ok()) return added;
  }
  names.finish();

  for (const auto& [name, op] : parsed->reduced) factors.reduced.push_back({names.factorOf(std::string(name)), op});
  for (const absl::string_view name : parsed->full) factors.neverEmpty.push_back(names.factorOf(std::string(name)));
  const auto addSets = [&](const std::vector<std::vector<int>>& sets, std::vector<std::vector<int>>* into) {
    for (const std::vector<int>& set : sets) {
      std::vector<int> inputs;
      bool complete = true;
      for (const int term : set) {
        const auto at = static_cast<std::size_t>(term);
        const int input = at < inputOf.size() ? inputOf[at] : kNumber;
        // x + 10 is affine, not linear.
        if (input == kNumber) complete = false;
        if (input >= 0) inputs.push_back(input);
      }
      if (complete && !inputs.empty()) into->push_back(std::move(inputs));
    }
  };
  addSets(parsed->linear, &factors.linear);
  addSets(parsed->moved, &factors.moved);
  // Integers are rounded.
  const bool rounds = std::any_of(call.outputs.begin(), call.outputs.end(), [](const TensorMeta* output) {
    return !isFloatingPoint(output->dtype) && !isComplex(output->dtype);
  });
  if (!rounds) addSets(parsed->linearFloat, &factors.linear);
  for (const auto& [terms, inputs] :
       {std::pair{&parsed->addends, &factors.addends}, {&parsed->unread, &factors.unread}}) {
    for (const int term : *terms) {
      const auto at = static_cast<std::size_t>(term);
      if (at < inputOf.size() && inputOf[at] >= 0) inputs->push_back(inputOf[at]);
    }
  }
  for (const Parsed::Size& size : parsed->sizes) {
    const auto output = static_cast<std::size_t>(size.output);
    if (size.output < 0 || output >= call.outputs.size() || size.dim < -1 ||
        size.dim >= static_cast<int>(call.outputs[output]->shape.size())) {
      return absl::UnimplementedError(absl::StrCat("it has no result ", size.output, " with such a dimension"));
    }
    if (const int position = call.position(size.argument); position >= 0) {
      factors.sizes.push_back({position, size.output, size.dim});
    }
  }
  return factors;
}

}  // namespace dtorch
