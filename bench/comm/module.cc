// The Python face of SameDeviceBackend: what torch.distributed.Backend.register_backend wants, and no more.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "comm/group/same_device_backend.h"
#include "comm/store/shared_allocator.h"

PYBIND11_MODULE(dtorch_c10d, module) {
  module.def("install_shared_allocator", &dtorch::installSharedAllocator);
  module.def(
      "create_backend",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
         std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Backend> {
        return dtorch::SameDeviceBackend::create(store, rank, size, timeout);
      },
      py::call_guard<py::gil_scoped_release>());
}
