#pragma once
#include <complex>
#include <cstddef>
#include <string>

#include "core/dtype.h"

namespace dtorch {

/// A number that holds those of every dtype exactly (bool as 0 and 1).
using Element = std::complex<long double>;

/// The element at `data`, which need not be aligned.
Element readElement(const std::byte* data, DType dtype);
/// "3", "0.25", "nan", "(1+2j)"; reads back as the same number of its dtype.
std::string formatElement(Element element, DType dtype);

}  // namespace dtorch
