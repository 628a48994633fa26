# The only ways in which this project makes targets.

# dtorch_library(NAME SOURCES ... PUBLIC targets... PRIVATE targets... [TORCH])
#   TORCH: the sources include LibTorch headers: precompile the heavy ones.
function(dtorch_library name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  target_link_libraries(${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE} dtorch::warnings)
  if(arg_TORCH)
    dtorch_use_torch(${name})
  endif()
endfunction()

# dtorch_executable(NAME SOURCES ... LINK targets... [TORCH])
function(dtorch_executable name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  target_link_libraries(${name} PRIVATE ${arg_LINK} dtorch::warnings)
  if(arg_TORCH)
    dtorch_use_torch(${name})
  endif()
endfunction()

# dtorch_shared_library(NAME SOURCES ... LINK targets... [TORCH] [SHARES_ALL]): lib<NAME>.so beside the programs. It exports
#   what its own sources do, and of the libraries in it nothing, or all.
function(dtorch_shared_library name)
  cmake_parse_arguments(arg "TORCH;SHARES_ALL" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} SHARED ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  target_link_libraries(${name} PRIVATE dtorch::warnings)
  if(arg_SHARES_ALL)
    foreach(library IN LISTS arg_LINK)
      target_link_libraries(${name} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${library}>)
    endforeach()
  else()
    target_link_libraries(${name} PRIVATE ${arg_LINK})
    target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL)
  endif()
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
    BUILD_RPATH_USE_ORIGIN ON)
  if(arg_TORCH)
    dtorch_use_torch(${name})
  endif()
endfunction()

set(DTORCH_TEST_LABELS unit conformance process gpu soak nightly)
# All tests that may run under the thread sanitizer: `cmake --build --preset tsan --target tsan_tests`, `ctest -L tsan`.
add_custom_target(tsan_tests)

# dtorch_test(NAME LABEL SOURCES ... LINK targets... [TIMEOUT seconds] [TORCH] [SERIAL] [TSAN])
#   LABEL is one of DTORCH_TEST_LABELS. A test that prints "SKIP: reason" and has no failure counts as skipped.
#   SERIAL: it measures time, so nothing else runs beside it.
#   TSAN: it uses neither torch, gRPC nor ZeroMQ (correct code of theirs gives false alarms), so ./dev check also runs it
#   with the thread sanitizer.
function(dtorch_test name label)
  cmake_parse_arguments(arg "TORCH;SERIAL;TSAN" "TIMEOUT" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  target_link_libraries(${name} PRIVATE ${arg_LINK} dtorch_test_main dtorch::warnings)
  if(arg_TORCH)
    dtorch_use_torch(${name})
  endif()
  set(labels ${label})
  if(arg_TSAN)
    if(arg_TORCH)
      message(FATAL_ERROR "${name} is marked both TORCH and TSAN")
    endif()
    list(APPEND labels tsan)
    add_dependencies(tsan_tests ${name})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # ctest lets a skip hide a failure, so the expression asks for Catch2's closing line of a run without one.
  set_tests_properties(${name} PROPERTIES
    SKIP_REGULAR_EXPRESSION "SKIP: .*(All tests passed|assertions: - none -)")
  dtorch_test_properties(${name} "${labels}" "${arg_TIMEOUT}" "${arg_SERIAL}")
endfunction()

# dtorch_python_test(NAME LABEL SCRIPT file [ARGS ...] [TIMEOUT seconds] [SERIAL] [TORCH]): a script that needs only
#   Python's standard library; TORCH: also NumPy and PyTorch, and finds the package dtorch (not with sanitizers, which a
#   plain Python cannot load). Exit code 0 is a pass, 77 a skip (with a line "SKIP: reason").
function(dtorch_python_test name label)
  cmake_parse_arguments(arg "SERIAL;TORCH" "TIMEOUT;SCRIPT" "ARGS" ${ARGN})
  set(python ${PYTHON3})
  if(arg_TORCH)
    if(DTORCH_SANITIZE)
      return()
    endif()
    set(python ${CMAKE_COMMAND} -E env PYTHONPATH=${CMAKE_SOURCE_DIR}/client/python
      DTORCH_LIBRARY_PATH=${CMAKE_RUNTIME_OUTPUT_DIRECTORY} TORCH_CPP_LOG_LEVEL=ERROR ${DTORCH_TORCH_PYTHON})
  endif()
  add_test(NAME ${name} COMMAND ${python} ${CMAKE_CURRENT_SOURCE_DIR}/${arg_SCRIPT} ${arg_ARGS})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  dtorch_test_properties(${name} "${label}" "${arg_TIMEOUT}" "${arg_SERIAL}")
endfunction()

function(dtorch_test_properties name labels timeout serial)
  list(GET labels 0 label)
  if(NOT label IN_LIST DTORCH_TEST_LABELS)
    message(FATAL_ERROR "${name}: the label ${label} is none of ${DTORCH_TEST_LABELS}")
  endif()
  if(NOT timeout)
    set(timeout 60)
  endif()
  if(DTORCH_SANITIZE)
    math(EXPR timeout "${timeout} * 5")
  endif()
  set_tests_properties(${name} PROPERTIES
    LABELS "${labels}" TIMEOUT ${timeout} RUN_SERIAL "${serial}" ENVIRONMENT "${DTORCH_SANITIZE_ENVIRONMENT}")
endfunction()

# Torch-facing targets share one precompiled header, which takes longer than most sources. It serves every target because
# all are compiled with the same flags: -pthread and -fPIC for all, and macros of their own that these headers do not use.
function(dtorch_use_torch target)
  target_link_libraries(${target} PRIVATE torch::cpu Threads::Threads)
  target_precompile_headers(${target} REUSE_FROM dtorch_torch_headers)
endfunction()
