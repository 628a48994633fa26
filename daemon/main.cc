// dtorchd's first instructions. What it consists of is in a library beside it, because that takes a third of a second
// to load: a signal that comes meanwhile is kept, and stops the daemon in order when it can be read.
#include <dlfcn.h>
#include <signal.h>

#include <cstdio>

#include "daemon/stop_signals.h"

int main(int argc, char** argv) {
  const sigset_t signals = dtorch::stopSignals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  void* library = dlopen("libdtorchd_main.so", RTLD_NOW | RTLD_GLOBAL);
  void* run = library == nullptr ? nullptr : dlsym(library, "dtorchd_main");
  if (run == nullptr) {
    std::fprintf(stderr, "dtorchd: %s\n", dlerror());
    return 1;
  }
  return reinterpret_cast<int (*)(int, char**)>(run)(argc, argv);
}
