// The precompiled header of all torch-facing targets is built with this file (cmake/Library.cmake).
