# torch::cpu: LibTorch of the PyPI torch wheel, as an imported target of our own.
# Never find_package(Torch): it fails on a machine without a CUDA toolkit, and links libtorch_cuda into every process.
set(DTORCH_TORCH_DIR "" CACHE PATH "Folder of the installed Python package torch; default: the one of ./.venv")
if(NOT DTORCH_TORCH_DIR)
  file(GLOB torch_dirs ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(LENGTH torch_dirs torch_count)
  if(NOT torch_count EQUAL 1)
    message(FATAL_ERROR "no torch in ${CMAKE_SOURCE_DIR}/.venv: run ./dev setup, or pass -DDTORCH_TORCH_DIR=<site-packages>/torch")
  endif()
  set(DTORCH_TORCH_DIR ${torch_dirs} CACHE PATH "" FORCE)
endif()

# The Python that has it: <prefix>/lib/python3.x/site-packages/torch.
cmake_path(SET DTORCH_TORCH_PYTHON NORMALIZE ${DTORCH_TORCH_DIR}/../../../../bin/python)

add_library(torch_c10 SHARED IMPORTED GLOBAL)
set_target_properties(torch_c10 PROPERTIES IMPORTED_LOCATION ${DTORCH_TORCH_DIR}/lib/libc10.so)
add_library(torch_cpu SHARED IMPORTED GLOBAL)
set_target_properties(torch_cpu PROPERTIES IMPORTED_LOCATION ${DTORCH_TORCH_DIR}/lib/libtorch_cpu.so)
# -idirafter: the wheel's include/ holds an old google/protobuf and fmt, which must lose against Debian's.
target_compile_options(torch_cpu INTERFACE
  "SHELL:-idirafter ${DTORCH_TORCH_DIR}/include" "SHELL:-idirafter ${DTORCH_TORCH_DIR}/include/torch/csrc/api/include")
target_link_libraries(torch_cpu INTERFACE torch_c10)
target_link_options(torch_cpu INTERFACE -Wl,-rpath,${DTORCH_TORCH_DIR}/lib -Wl,-rpath-link,${DTORCH_TORCH_DIR}/lib)
add_library(torch::cpu ALIAS torch_cpu)
