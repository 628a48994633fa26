# Compiler speed, sanitizers and warnings. Every target of ours links dtorch::warnings through cmake/Library.cmake.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(DTORCH_SANITIZE "" CACHE STRING "Value of -fsanitize: address,undefined or thread; empty for none")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  # The precompiled header's own checks are replaced by ccache's: https://ccache.dev/manual (Precompiled headers).
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()

if(DTORCH_SANITIZE)
  add_compile_options(-fsanitize=${DTORCH_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${DTORCH_SANITIZE})
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options(-O1)
endif()

add_library(dtorch_warnings INTERFACE)
target_compile_options(dtorch_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror)
add_library(dtorch::warnings ALIAS dtorch_warnings)
