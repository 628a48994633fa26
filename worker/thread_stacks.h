#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace dtorch {

struct NamedStack {
  pid_t tid = 0;
  std::string name;                 // of the thread, as pthread_setname_np() gave it
  std::vector<std::string> frames;  // functions, the innermost first; empty: it blocks signals, or does not answer
};

/// The stacks of this process's threads, but the caller's own. Each thread is interrupted by a signal for as long as it
/// takes to walk its stack: system calls of its may return EINTR. At most 256 threads are looked at, 32 frames of each.
/// Thread: safe; takes some milliseconds, and 200 more if a thread sleeps where no signal wakes it.
std::vector<NamedStack> threadStacks();

}  // namespace dtorch
