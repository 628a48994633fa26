# Compiler speed, sanitizers and warnings. Every target of ours links dtorch::warnings through cmake/Library.cmake.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(DTORCH_SANITIZE "" CACHE STRING "Value of -fsanitize: address,undefined or thread; empty for none")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  # The precompiled header's own checks are replaced by ccache's: https://ccache.dev/manual (Precompiled headers).
  # Paths below the checkout are hashed relative to the build folder: another checkout, or another folder of build/ with
  # the same flags, finds what this one has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()

if(DTORCH_SANITIZE)
  # Torch is not instrumented and has no type information of ours to check casts against.
  set(sanitize -fsanitize=${DTORCH_SANITIZE} -fno-sanitize=vptr)
  add_compile_options(${sanitize} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(${sanitize})
  set(DTORCH_SANITIZE_ENVIRONMENT
    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1"
    "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/lsan.supp:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")
endif()
# -O3 costs a third more time to compile; the kernels are LibTorch's own.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
add_compile_options(-pthread)
# Executables are compiled as libraries are, so that one precompiled header serves both.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options(-O1)
endif()

add_library(dtorch_warnings INTERFACE)
target_compile_options(dtorch_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror)
add_library(dtorch::warnings ALIAS dtorch_warnings)
