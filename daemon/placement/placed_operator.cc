#include "daemon/placement/placed_operator.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/conversion.h"
#include "core/shard.h"
#include "daemon/placement/notation.h"
#include "daemon/placement/operator_cost.h"
#include "dispatch/written_arguments.h"

namespace dtorch {
namespace {

// Of a Partial result: it may be added up together with others, and need not be waited for now.
constexpr double kLaterShare = 0.75;

// More ways than these are not compared: a program of three mesh dimensions has some hundreds. The first is all
// Replicate.
constexpr std::size_t kMaxCandidates = 4096;
// Nor those for which more tensors would have to be looked at, over all ways: a list has thousands.
constexpr std::size_t kMaxLooks = 1u << 18;
constexpr std::size_t kMinCandidates = 64;

// Of accepted placements, in an error: status texts of more than some 8 KiB do not arrive.
constexpr std::size_t kAcceptedBytes = 2048;

// Whether what is moved keeps its dtype: each rank would round or widen its own summand.
bool keepsDType(const RuleCall& call, const std::vector<int>& inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [&](int input) {
    const DType dtype = call.inputs[static_cast<std::size_t>(input)]->dtype;
    return std::all_of(call.outputs.begin(), call.outputs.end(),
                       [&](const TensorMeta* output) { return output->dtype == dtype; });
  });
}

// Whether the operator adds up in the arithmetic in which its Partial inputs do: a bool's sum is an "or", a narrow
// integer's wraps around, and a cast to another dtype rounds each summand.
bool isLinearIn(const RuleCall& call, const std::vector<int>& inputs) {
  for (const int input : inputs) {
    const DType dtype = call.inputs[static_cast<std::size_t>(input)]->dtype;
    if (dtype == DType::kBool) return false;
    for (const TensorMeta* output : call.outputs) {
      if (output->dtype != dtype) return false;
    }
  }
  return true;
}

// For each argument of an operator: the list of tensors that it is. Made once, not for each place of a long list.
using Lists = std::vector<std::optional<TensorListArg>>;

Lists listsOf(const OperatorTemplate& op) {
  Lists lists;
  for (const Value& value : op.arguments) lists.push_back(tensorListOf(value));
  return lists;
}

int listLength(const Lists& lists) {
  for (const std::optional<TensorListArg>& list : lists) {
    if (list && !list->indices.empty()) return static_cast<int>(list->indices.size());
  }
  return 0;
}

// The tensors of a call as a rule sees them: see RuleElement. `place`: of the lists; -1: not an operator on lists.
absl::StatusOr<RuleElement> elementOf(const OperatorTemplate& op, const Lists& lists,
                                      absl::Span<const TensorLayout* const> inputs,
                                      const std::vector<TensorMeta>& outputs, int place) {
  const c10::FunctionSchema& schema = op.op.schema();
  RuleElement element{RuleCall{schema, {}, {}, {}}, {}, {}, {}, {}};
  std::vector<std::uint32_t> outs;     // given as out=
  std::vector<std::uint32_t> changed;  // written in place, and not returned
  const auto isReturned = [&](std::uint32_t input) {
    return std::any_of(op.returned.begin(), op.returned.end(), [&](const auto& pair) { return pair.second == input; });
  };
  const auto add = [&](std::uint32_t input) {
    element.inputs.push_back(input);
    element.call.inputs.push_back(&inputs[input]->meta);
    return TensorArg{static_cast<std::uint32_t>(element.inputs.size() - 1)};
  };
  const std::vector<std::optional<std::uint32_t>> none;
  for (std::size_t a = 0; a < op.arguments.size(); ++a) {
    const c10::Argument& parameter = schema.arguments()[a];
    const Value& value = op.arguments[a];
    const bool writes = isWritten(schema, a, op.arguments);
    const bool isList = lists[a].has_value();
    const auto& list = isList ? lists[a]->indices : none;
    if (isList && place >= 0) {
      if (static_cast<std::size_t>(place) >= list.size() || !list[static_cast<std::size_t>(place)]) {
        element.call.arguments.emplace_back();
        continue;
      }
      const std::uint32_t input = *list[static_cast<std::size_t>(place)];
      if (writes && parameter.is_out()) {
        outs.push_back(input);
        element.call.arguments.emplace_back();
        continue;
      }
      if (writes) changed.push_back(input);
      element.call.arguments.emplace_back(add(input));
    } else if (isList) {
      TensorListArg renumbered;
      for (const auto& index : list) {
        if (!index) {
          renumbered.indices.emplace_back();
        } else if (writes && parameter.is_out()) {
          outs.push_back(*index);
        } else {
          renumbered.indices.emplace_back(add(*index).index);
        }
      }
      element.call.arguments.emplace_back(std::move(renumbered));
    } else if (const auto* tensor = value.as<TensorArg>()) {
      if (parameter.is_out()) {
        outs.push_back(tensor->index);
        element.call.arguments.emplace_back();
      } else {
        if (place >= 0) element.shared.push_back(element.inputs.size());
        element.call.arguments.emplace_back(add(tensor->index));
      }
    } else if (place >= 0 && value.as<std::vector<Value>>() != nullptr &&
               static_cast<std::size_t>(place) < value.as<std::vector<Value>>()->size()) {
      element.call.arguments.push_back((*value.as<std::vector<Value>>())[static_cast<std::size_t>(place)]);
    } else {
      element.call.arguments.push_back(value);
    }
  }
  const auto addOutput = [&](const TensorMeta* meta, std::uint32_t number) {
    element.call.outputs.push_back(meta);
    element.outputs.push_back(number);
    return static_cast<std::uint32_t>(element.outputs.size() - 1);
  };
  if (place < 0) {
    for (std::size_t o = 0; o < outputs.size(); ++o) addOutput(&outputs[o], static_cast<std::uint32_t>(o));
    for (const auto& [output, input] : op.returned) element.written.emplace_back(output, input);
    // Lists that are given as out= are not returned.
    for (const std::uint32_t input : outs) {
      if (!isReturned(input))
        element.written.emplace_back(addOutput(&inputs[input]->meta, RuleElement::kNoOutput), input);
    }
    return element;
  }
  // Lists of results come one after the other; what is written and not returned is a result, too.
  const auto places = static_cast<std::size_t>(listLength(lists));
  for (std::size_t o = static_cast<std::size_t>(place); outputs.size() % places == 0 && o < outputs.size();
       o += places) {
    addOutput(&outputs[o], static_cast<std::uint32_t>(o));
  }
  for (const std::uint32_t input : changed) {
    if (isReturned(input)) continue;
    element.written.emplace_back(addOutput(&inputs[input]->meta, RuleElement::kNoOutput), input);
  }
  for (const std::uint32_t input : outs) {
    element.written.emplace_back(addOutput(&inputs[input]->meta, RuleElement::kNoOutput), input);
  }
  return element;
}

// What takes a program stays whole.
void withoutPrograms(Factors* factors) {
  for (const Factors::Combined& combined : factors->combined) {
    for (const int factor : combined.factors) {
      for (auto* tensors : {&factors->inputs, &factors->outputs}) {
        for (std::vector<int>& dims : *tensors) std::replace(dims.begin(), dims.end(), factor, Factors::kWhole);
      }
    }
  }
  factors->combined.clear();
}

// What cannot be reduced cannot be read.
bool isReadable(const Signature& row, const RuleCall& call) {
  const auto readable = [](const std::vector<Placement>& placements, const std::vector<const TensorMeta*>& metas) {
    for (std::size_t i = 0; i < metas.size(); ++i) {
      if (placements[i].isPartial() && !isReducible(metas[i]->dtype, placements[i].reduceOp())) return false;
    }
    return true;
  };
  return readable(row.inputs, call.inputs) && readable(row.outputs, call.outputs);
}

// A rule that does not speak of all tensors of a call does not cover it.
absl::Status checkCovers(const Factors& factors, const RuleCall& call) {
  const auto covers = [](const std::vector<std::vector<int>>& dims, const std::vector<const TensorMeta*>& metas) {
    return std::equal(
        dims.begin(), dims.end(), metas.begin(), metas.end(),
        [](const std::vector<int>& of, const TensorMeta* meta) { return of.size() == meta->shape.size(); });
  };
  if (covers(factors.inputs, call.inputs) && covers(factors.outputs, call.outputs)) return absl::OkStatus();
  return absl::UnimplementedError("its placement rule does not cover tensors of these shapes");
}

// PyTorch takes numbers for tensors; most families count on tensors where the schema has them.
absl::Status checkNumbers(const FoundRule& rule, const RuleCall& call) {
  if (rule.family == notationFactors || rule.family == pointwiseFactors) return absl::OkStatus();
  for (std::size_t a = 0; a < call.arguments.size(); ++a) {
    const c10::Argument& parameter = call.schema.arguments()[a];
    if (parameter.is_out() || parameter.type()->kind() != c10::TypeKind::TensorType) continue;
    if (call.arguments[a].as<TensorArg>() != nullptr) continue;
    return absl::UnimplementedError(absl::StrCat("argument '", parameter.name(), "' is no tensor"));
  }
  return absl::OkStatus();
}

// A rule whose factors point past the call would write past its arguments.
absl::Status checkBounds(const Factors& factors, const RuleCall& call) {
  const auto inRange = [](std::int64_t index, std::size_t size) {
    return index >= 0 && index < static_cast<std::int64_t>(size);
  };
  const auto hasDim = [&](bool output, std::int64_t tensor, std::int64_t dim) {
    const std::vector<const TensorMeta*>& metas = output ? call.outputs : call.inputs;
    return inRange(tensor, metas.size()) && inRange(dim, metas[static_cast<std::size_t>(tensor)]->shape.size());
  };
  bool fits = true;
  for (const auto* tensors : {&factors.inputs, &factors.outputs}) {
    for (const std::vector<int>& dims : *tensors) {
      for (const int factor : dims) fits = fits && factor >= Factors::kWhole && factor < factors.count;
    }
  }
  for (const Factors::Block& block : factors.blocks) {
    fits = fits && block.inner > 0 && hasDim(block.output, block.tensor, block.dim);
  }
  for (const Factors::SizeArgument& size : factors.sizes) {
    fits = fits && inRange(size.argument, call.arguments.size()) && inRange(size.output, call.outputs.size()) &&
           (size.dim == -1 || hasDim(true, size.output, size.dim));
  }
  for (const auto* sets : {&factors.linear, &factors.moved}) {
    for (const std::vector<int>& set : *sets) {
      for (const int input : set) fits = fits && inRange(input, call.inputs.size());
    }
  }
  for (const auto* inputs : {&factors.addends, &factors.unread}) {
    for (const int input : *inputs) fits = fits && inRange(input, call.inputs.size());
  }
  return fits ? absl::OkStatus() : absl::UnimplementedError("its placement rule is not for such a call");
}

// Rows as an error shows them: of a call on a list of thousands one alone would be a book.
std::string textOf(const std::vector<Signature>& rows) {
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    absl::StrAppend(&text, r == 0 ? "" : " | ", rows[r].toString());
    if (text.size() <= kAcceptedBytes) continue;
    text.resize(kAcceptedBytes);
    absl::StrAppend(&text, "...");
    if (r + 1 < rows.size()) absl::StrAppend(&text, " and ", rows.size() - r - 1, " more");
    break;
  }
  return text;
}

// Calls `visit` with each coordinate of the mesh, until it says no.
bool allCoordinates(const DeviceMesh& mesh, const std::function<bool(const std::vector<std::int64_t>&)>& visit) {
  std::vector<std::int64_t> coordinate(static_cast<std::size_t>(mesh.dims()), 0);
  for (;;) {
    if (!visit(coordinate)) return false;
    int m = mesh.dims() - 1;
    for (; m >= 0; --m) {
      const auto at = static_cast<std::size_t>(m);
      if (++coordinate[at] < mesh.shape()[at]) break;
      coordinate[at] = 0;
    }
    if (m < 0) return true;
  }
}

}  // namespace

absl::StatusOr<OperatorRule> OperatorRule::create(const OperatorTemplate& op,
                                                  absl::Span<const TensorLayout* const> inputs,
                                                  const std::vector<TensorMeta>& outputs, const PlacedMesh* mesh,
                                                  const RuleBook& book) {
  absl::StatusOr<FoundRule> rule = findRule(op.op, book);
  if (!rule.ok()) return rule.status();
  OperatorRule result;
  result.inputs_ = inputs;
  result.mesh_ = mesh;
  const Lists lists = listsOf(op);
  const int places = rule->foreach ? listLength(lists) : 1;
  if (places == 0) return absl::UnimplementedError("its lists are empty");
  result.written_.resize(inputs.size());
  for (const std::uint32_t input : op.written) result.written_[input] = true;
  for (int place = 0; place < places; ++place) {
    absl::StatusOr<RuleElement> element = elementOf(op, lists, inputs, outputs, rule->foreach ? place : -1);
    if (!element.ok()) return element.status();
    if (absl::Status numbers = checkNumbers(*rule, element->call); !numbers.ok()) return numbers;
    absl::StatusOr<Factors> factors = rule->family(element->call, rule->detail);
    if (!factors.ok()) return factors.status();
    if (absl::Status covers = checkCovers(*factors, element->call); !covers.ok()) return covers;
    for (std::size_t o = 0; o < element->call.outputs.size(); ++o) {
      if (element->call.outputs[o]->numel() == 0) factors->nothing.push_back(static_cast<int>(o));
    }
    if (absl::Status bounds = checkBounds(*factors, element->call); !bounds.ok()) return bounds;
    std::erase_if(factors->moved, [&](const std::vector<int>& set) { return !keepsDType(element->call, set); });
    std::erase_if(factors->linear, [&](const std::vector<int>& set) { return !isLinearIn(element->call, set); });
    // Most programs make new tensors; none is for a list that is written to.
    if (!op.written.empty() && (rule->foreach || !factors->programWrites)) withoutPrograms(&*factors);
    RuledElement ruled{*std::move(element), *std::move(factors), {}};
    for (Signature& row : signaturesOf(ruled.factors)) {
      bool stays = isReadable(row, ruled.element.call);
      // What all elements share lies in one way.
      for (const std::size_t shared : ruled.element.shared) stays = stays && row.inputs[shared].isReplicate();
      for (const auto& [output, input] : ruled.element.written) {
        const auto at = std::find(ruled.element.inputs.begin(), ruled.element.inputs.end(), input);
        if (at == ruled.element.inputs.end()) continue;  // out=: it lies as the result does, or the call is refused
        const auto index = static_cast<std::size_t>(at - ruled.element.inputs.begin());
        stays = stays && row.inputs[index] == row.outputs[output];
      }
      if (stays) ruled.rows.push_back(std::move(row));
    }
    result.elements_.push_back(std::move(ruled));
  }
  return result;
}

Placements OperatorRule::inputPlacements(const std::vector<const Signature*>& rows, std::size_t input) {
  Placements placements;
  for (const Signature* row : rows) placements.push_back(row->inputs[input]);
  return placements;
}

Placements OperatorRule::outputPlacements(const std::vector<const Signature*>& rows, std::size_t output) {
  Placements placements;
  for (const Signature* row : rows) placements.push_back(row->outputs[output]);
  return placements;
}

absl::Status OperatorRule::check(const RuledElement& ruled, const std::vector<const Signature*>& rows) const {
  const Factors& factors = ruled.factors;
  const RuleCall& call = ruled.element.call;
  const auto isSharded = [&](int factor) {
    return std::any_of(rows.begin(), rows.end(), [&](const Signature* row) { return row->factor == factor; });
  };
  for (const int factor : factors.neverEmpty) {
    if (!isSharded(factor)) continue;
    for (std::size_t i = 0; i < factors.inputs.size(); ++i) {
      const auto at = std::find(factors.inputs[i].begin(), factors.inputs[i].end(), factor);
      if (at == factors.inputs[i].end()) continue;
      const int dim = static_cast<int>(at - factors.inputs[i].begin());
      const std::int64_t extent = call.inputs[i]->shape[static_cast<std::size_t>(dim)];
      const Placements placements = inputPlacements(rows, i);
      const bool full = allCoordinates(mesh_->mesh, [&](const std::vector<std::int64_t>& coordinate) {
        return localRange(extent, dim, mesh_->mesh, placements, coordinate).length > 0;
      });
      if (!full) {
        return absl::InvalidArgumentError(absl::StrCat(
            "dimension ", dim, " of ", extent, " leaves a rank without a part, which its kernel does not take"));
      }
    }
  }
  for (const Factors::Block& block : factors.blocks) {
    const auto tensor = static_cast<std::size_t>(block.tensor);
    const int factor = (block.output ? factors.outputs : factors.inputs)[tensor][static_cast<std::size_t>(block.dim)];
    if (!isSharded(factor) || block.inner == 1) continue;
    const TensorMeta& meta = block.output ? *call.outputs[tensor] : *call.inputs[tensor];
    const Placements placements = block.output ? outputPlacements(rows, tensor) : inputPlacements(rows, tensor);
    const std::int64_t extent = meta.shape[static_cast<std::size_t>(block.dim)];
    const bool aligned = allCoordinates(mesh_->mesh, [&](const std::vector<std::int64_t>& coordinate) {
      const ShardRange range = localRange(extent, block.dim, mesh_->mesh, placements, coordinate);
      const ShardRange outer = localRange(extent / block.inner, block.dim, mesh_->mesh, placements, coordinate);
      return range.length == outer.length * block.inner &&
             (range.length == 0 || range.offset == outer.offset * block.inner);
    });
    if (!aligned) {
      return absl::InvalidArgumentError(absl::StrCat("dimension ", block.dim, " of ", extent, " is made of blocks of ",
                                                     block.inner, ", and a rank's part would end within one"));
    }
  }
  const Factors::Combined* combined = nullptr;
  for (const Signature* row : rows) {
    for (const Factors::Combined& other : factors.combined) {
      if (std::find(other.factors.begin(), other.factors.end(), row->factor) == other.factors.end()) continue;
      if (combined != nullptr && combined != &other) {
        return absl::UnimplementedError("two dimensions would have to be combined over ranks in different ways");
      }
      combined = &other;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Candidate> OperatorRule::match() const {
  Candidate candidate;
  for (const RuledElement& ruled : elements_) {
    const RuleElement& element = ruled.element;
    std::vector<const Signature*> rows;
    for (std::size_t m = 0; m < static_cast<std::size_t>(mesh_->mesh.dims()); ++m) {
      const auto fits = [&](const Signature& row) {
        for (std::size_t i = 0; i < element.inputs.size(); ++i) {
          if (inputs_[element.inputs[i]]->placements[m] != row.inputs[i]) return false;
        }
        for (const auto& [output, input] : element.written) {
          if (inputs_[input]->placements[m] != row.outputs[output]) return false;
        }
        return true;
      };
      const auto row = std::find_if(ruled.rows.begin(), ruled.rows.end(), fits);
      if (row == ruled.rows.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("are placed as no rule accepts on mesh dimension ", m, "; accepted: ", textOf(ruled.rows)));
      }
      rows.push_back(&*row);
    }
    if (absl::Status fits = check(ruled, rows); !fits.ok()) {
      return absl::Status(fits.code(), absl::StrCat("cannot be split so: ", fits.message()));
    }
    candidate.rows.push_back(std::move(rows));
  }
  return candidate;
}

absl::StatusOr<Redistribution> Redistribution::plan(std::uint32_t input, const TensorMeta& meta, const DeviceMesh& mesh,
                                                    const Placements& from, const Placements& to) {
  const absl::StatusOr<std::vector<ConversionStep>> steps = planConversion(meta.shape, mesh, from, to);
  if (!steps.ok()) return steps.status();
  Redistribution moved{input, from, to, 0, {}};
  for (const ConversionStep& step : *steps) {
    moved.bytes += step.received * static_cast<double>(elementSize(meta.dtype));
    if (step.communicates()) moved.collectives.push_back(step.collective());
  }
  return moved;
}

Redistribution Redistribution::of(std::uint32_t input, const TensorMeta& meta, const DeviceMesh& mesh,
                                  const Placements& from, const Placements& to) {
  return plan(input, meta, mesh, from, to).value_or(Redistribution{input, from, to, 0, {}});
}

const absl::StatusOr<Redistribution>& OperatorRule::moveOf(const TensorLayout& layout, const Placements& to) const {
  auto it = moves_.find({&layout, to});
  if (it == moves_.end()) {
    it =
        moves_.emplace(std::pair{&layout, to}, Redistribution::plan(0, layout.meta, mesh_->mesh, layout.placements, to))
            .first;
  }
  return it->second;
}

bool OperatorRule::spreadsInVain(const RuleElement& element, const std::vector<const Signature*>& rows,
                                 std::size_t input) const {
  const TensorLayout& layout = *inputs_[element.inputs[input]];
  for (std::size_t m = 0; m < rows.size(); ++m) {
    const Placement& to = rows[m]->inputs[input];
    if (!to.isPartial() || layout.placements[m] == to) continue;
    bool otherMustBe = false;
    for (std::size_t other = 0; other < element.inputs.size(); ++other) {
      const Placement& beside = rows[m]->inputs[other];
      const bool isAlready = beside == to && inputs_[element.inputs[other]]->placements[m] == to;
      otherMustBe = otherMustBe || (other != input && (beside.isShard() || isAlready));
    }
    if (!otherMustBe) return true;
  }
  return false;
}

std::vector<Candidate> OperatorRule::candidates(std::size_t e) const {
  const RuledElement& ruled = elements_[e];
  const RuleElement& element = ruled.element;
  const auto meshDims = static_cast<std::size_t>(mesh_->mesh.dims());
  const OperatorCost whole = OperatorCost::of(element.call, ruled.factors);
  const std::size_t looks = std::max<std::size_t>(elements_.size() * element.inputs.size(), 1);
  const std::size_t compared = std::clamp(kMaxLooks / looks, kMinCandidates, kMaxCandidates);
  std::vector<Candidate> all;
  std::vector<std::size_t> chosen(meshDims, 0);
  for (std::size_t tried = 0; tried < compared; ++tried) {
    std::vector<const Signature*> rows;
    double parts = 1;
    for (std::size_t m = 0; m < meshDims; ++m) {
      rows.push_back(&ruled.rows[chosen[m]]);
      if (rows[m]->factor >= 0) parts *= static_cast<double>(mesh_->mesh.shape()[m]);
    }
    bool possible = check(ruled, rows).ok();
    Candidate candidate;
    candidate.cost = whole.seconds() / parts;
    // Somebody will have to add up what is Partial.
    for (std::size_t o = 0; o < element.call.outputs.size(); ++o) {
      for (std::size_t m = 0; m < meshDims; ++m) {
        if (!rows[m]->outputs[o].isPartial()) continue;
        const auto ranks = static_cast<double>(mesh_->mesh.shape()[m]);
        const auto bytes = static_cast<double>(element.call.outputs[o]->bytes());
        candidate.cost += kLaterShare * transferSeconds(bytes * (ranks - 1) / ranks, 1);
      }
    }
    for (std::size_t i = 0; possible && i < element.inputs.size(); ++i) {
      const TensorLayout& layout = *inputs_[element.inputs[i]];
      const Placements to = inputPlacements(rows, i);
      if (to == layout.placements) continue;
      possible = !written_[element.inputs[i]] && !spreadsInVain(element, rows, i);
      if (!possible) break;
      const absl::StatusOr<Redistribution>& move = moveOf(layout, to);
      possible = move.ok();
      if (!possible) break;
      candidate.redistributions.push_back(*move);
      candidate.redistributions.back().input = element.inputs[i];
      candidate.cost += transferSeconds(move->bytes, static_cast<int>(move->collectives.size()));
    }
    // What is written must be where the result comes: it is not moved.
    for (const auto& [output, input] : element.written) {
      possible = possible && outputPlacements(rows, output) == inputs_[input]->placements;
    }
    if (possible) {
      candidate.rows = {std::move(rows)};
      all.push_back(std::move(candidate));
    }
    std::size_t m = 0;
    while (m < meshDims && ++chosen[m] == ruled.rows.size()) chosen[m++] = 0;
    if (m == meshDims) break;
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  return all;
}

bool OperatorRule::isLike(const RuleElement& element, const RuleElement& other) const {
  const auto isSameLayout = [&](std::uint32_t a, std::uint32_t b) {
    return inputs_[a] == inputs_[b] && written_[a] == written_[b];
  };
  const auto isSameMeta = [](const TensorMeta* a, const TensorMeta* b) { return *a == *b; };
  return std::equal(element.inputs.begin(), element.inputs.end(), other.inputs.begin(), other.inputs.end(),
                    isSameLayout) &&
         std::equal(element.call.outputs.begin(), element.call.outputs.end(), other.call.outputs.begin(),
                    other.call.outputs.end(), isSameMeta) &&
         element.call.arguments == other.call.arguments &&
         std::equal(element.written.begin(), element.written.end(), other.written.begin(), other.written.end(),
                    [&](const auto& a, const auto& b) {
                      return a.first == b.first && inputs_[a.second] == inputs_[b.second];
                    });
}

absl::StatusOr<Candidate> OperatorRule::cheapest() const {
  Candidate total;
  Candidate best;
  std::size_t last = 0;  // whose best one it is: in a long list one element is mostly like the one before
  for (std::size_t e = 0; e < elements_.size(); ++e) {
    const RuleElement& element = elements_[e].element;
    if (e == 0 || !isLike(element, elements_[last].element)) {
      std::vector<Candidate> all = candidates(e);
      if (all.empty()) return absl::UnimplementedError("no redistribution of its inputs makes it possible");
      best = std::move(all[0]);
      last = e;
    }
    total.rows.push_back(best.rows[0]);
    total.cost += best.cost;
    for (Redistribution moved : best.redistributions) {
      const std::vector<std::uint32_t>& inputs = elements_[last].element.inputs;
      moved.input =
          element
              .inputs[static_cast<std::size_t>(std::find(inputs.begin(), inputs.end(), moved.input) - inputs.begin())];
      total.redistributions.push_back(std::move(moved));
    }
  }
  return total;
}

absl::StatusOr<std::unique_ptr<Program>> OperatorRule::program(const Candidate& candidate, std::size_t element) const {
  const std::vector<const Signature*>& rows = candidate.rows[element];
  for (const Factors::Combined& combined : elements_[element].factors.combined) {
    std::int64_t parts = 1;
    bool sharded = false;
    for (std::size_t m = 0; m < rows.size(); ++m) {
      const int factor = rows[m]->factor;
      if (std::find(combined.factors.begin(), combined.factors.end(), factor) == combined.factors.end()) continue;
      parts *= mesh_->mesh.shape()[m];
      sharded = true;
    }
    if (!sharded) continue;
    absl::StatusOr<Program> program = combined.program(elements_[element].element.call, parts);
    if (!program.ok()) return program.status();
    return std::make_unique<Program>(*std::move(program));
  }
  return nullptr;
}

}  // namespace dtorch
