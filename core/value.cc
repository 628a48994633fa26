#include "core/value.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtorch {
namespace {

struct Printer {
  std::string operator()(std::monostate) const { return "None"; }
  std::string operator()(bool v) const { return v ? "True" : "False"; }
  std::string operator()(std::int64_t v) const { return absl::StrCat(v); }
  std::string operator()(double v) const { return absl::StrCat(v); }
  std::string operator()(const std::complex<double>& v) const { return absl::StrCat(v.real(), "+", v.imag(), "j"); }
  std::string operator()(const std::string& v) const { return absl::StrCat("'", v, "'"); }
  std::string operator()(DType v) const { return std::string(name(v)); }
  std::string operator()(const DeviceArg& v) const { return v.text; }
  std::string operator()(Layout) const { return "strided"; }
  std::string operator()(MemoryFormat v) const { return absl::StrCat("memory_format ", static_cast<int>(v)); }
  std::string operator()(TensorArg v) const { return absl::StrCat("Tensor#", v.index); }
  std::string operator()(const TensorListArg& v) const {
    return absl::StrCat("[",
                        absl::StrJoin(v.indices, ", ",
                                      [](std::string* out, const auto& index) {
                                        absl::StrAppend(out, index ? absl::StrCat("Tensor#", *index) : "None");
                                      }),
                        "]");
  }
  std::string operator()(const std::vector<std::int64_t>& v) const {
    return absl::StrCat("[", absl::StrJoin(v, ", "), "]");
  }
  std::string operator()(const std::vector<double>& v) const { return absl::StrCat("[", absl::StrJoin(v, ", "), "]"); }
  std::string operator()(const std::vector<bool>& v) const {
    std::string text = "[";
    for (const bool b : v) absl::StrAppend(&text, text.size() > 1 ? ", " : "", b ? "True" : "False");
    return text + "]";
  }
  std::string operator()(const std::vector<Value>& v) const {
    return absl::StrCat(
        "[", absl::StrJoin(v, ", ", [](std::string* out, const Value& e) { out->append(e.toString()); }), "]");
  }
  std::string operator()(const LocalSizes& v) const {
    return absl::StrCat("local sizes of [", absl::StrJoin(v.shape, ", "), "] ", dtorch::toString(v.placements));
  }
  std::string operator()(const LocalRange& v) const {
    return absl::StrCat("local ", v.part == LocalRange::Part::kOffset ? "offset" : "length", " along ", v.dim, " of [",
                        absl::StrJoin(v.shape, ", "), "] ", dtorch::toString(v.placements));
  }
};

// Two doubles are the same argument only when every bit is: -0.0 and 0.0 differ, equal NaNs do not.
bool sameBits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

}  // namespace

std::optional<TensorListArg> tensorListOf(const Value& value) {
  if (const auto* list = value.as<TensorListArg>()) return *list;
  const auto* values = value.as<std::vector<Value>>();
  if (values == nullptr) return std::nullopt;
  TensorListArg list;
  for (const Value& element : *values) {
    const auto* tensor = element.as<TensorArg>();
    if (tensor == nullptr && !element.isNone()) return std::nullopt;
    list.indices.push_back(tensor == nullptr ? std::nullopt : std::optional<std::uint32_t>(tensor->index));
  }
  return list;
}

std::string Value::toString() const {
  constexpr std::size_t kLongest = 256;  // enough to recognise it in an error message
  std::string text = std::visit(Printer{}, value_);
  if (text.size() > kLongest) text.replace(kLongest, std::string::npos, "...");
  return text;
}

bool operator==(const Value& a, const Value& b) {
  if (a.value_.index() != b.value_.index()) return false;
  if (const double* x = a.as<double>()) return sameBits(*x, *b.as<double>());
  if (const auto* x = a.as<std::complex<double>>()) {
    const auto* y = b.as<std::complex<double>>();
    return sameBits(x->real(), y->real()) && sameBits(x->imag(), y->imag());
  }
  if (const auto* x = a.as<std::vector<double>>()) {
    const auto* y = b.as<std::vector<double>>();
    return x->size() == y->size() && std::equal(x->begin(), x->end(), y->begin(), sameBits);
  }
  return a.value_ == b.value_;
}

}  // namespace dtorch
