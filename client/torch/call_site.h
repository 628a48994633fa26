#pragma once
#include <string>

#include "client/cpp/site.h"

namespace dtorch {

/// The line of the Python program that is at work on this thread, outside of PyTorch and this package; "python" if
/// there is none.
Site callSite();
/// Files in this folder are not the program's.
void passOverFramesOf(const std::string& folder);

}  // namespace dtorch
