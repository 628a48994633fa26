// An operator library whose kernels do what kernels must not: for tests of what comes of it.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

namespace {

at::Tensor sameAs(const at::Tensor& x) { return at::empty_like(x); }

at::Tensor exitNow(const at::Tensor& /*x*/) { ::_exit(0); }

at::Tensor crash(const at::Tensor& x) {
  std::raise(SIGSEGV);
  return x.clone();
}

at::Tensor sleepFor(const at::Tensor& x, double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return x.clone();
}
at::Tensor sameAfter(const at::Tensor& x, double /*seconds*/) { return sameAs(x); }

// Multiplies matrices for so long, on all threads of the worker.
at::Tensor multiply(const at::Tensor& x, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const at::Tensor a = at::ones({512, 512}, x.options());
  while (std::chrono::steady_clock::now() < end) at::mm(a, a);
  return x.clone();
}

// Fails with `count` times a text of two characters, one of two bytes, after a byte that is no UTF-8.
at::Tensor complain(const at::Tensor& /*x*/, std::int64_t count) {
  std::string text = "\xff";
  for (std::int64_t i = 0; i < count; ++i) text += "e\xc3\xa9";
  TORCH_CHECK_VALUE(false, text, " the end");
}
at::Tensor complainMeta(const at::Tensor& x, std::int64_t /*count*/) { return sameAs(x); }

}  // namespace

TORCH_LIBRARY(fatal, library) {
  library.def("exit(Tensor x) -> Tensor");
  library.def("crash(Tensor x) -> Tensor");
  library.def("sleep(Tensor x, float seconds) -> Tensor");
  library.def("multiply(Tensor x, float seconds) -> Tensor");
  library.def("complain(Tensor x, int count) -> Tensor");
  library.impl("exit", c10::DispatchKey::CPU, TORCH_FN(exitNow));
  library.impl("exit", c10::DispatchKey::Meta, TORCH_FN(sameAs));
  library.impl("crash", c10::DispatchKey::CPU, TORCH_FN(crash));
  library.impl("crash", c10::DispatchKey::Meta, TORCH_FN(sameAs));
  library.impl("sleep", c10::DispatchKey::CPU, TORCH_FN(sleepFor));
  library.impl("sleep", c10::DispatchKey::Meta, TORCH_FN(sameAfter));
  library.impl("multiply", c10::DispatchKey::CPU, TORCH_FN(multiply));
  library.impl("multiply", c10::DispatchKey::Meta, TORCH_FN(sameAfter));
  library.impl("complain", c10::DispatchKey::CPU, TORCH_FN(complain));
  library.impl("complain", c10::DispatchKey::Meta, TORCH_FN(complainMeta));
}
