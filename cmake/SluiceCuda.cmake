# SLUICE_CUDA: AUTO builds the CUDA backend where nvcc is found, ON demands it, OFF leaves it out.
# Sets SLUICE_HAS_CUDA. Without nvcc nothing of CUDA is needed or looked for.
#
# nvcc is found as CMake finds it: CMAKE_CUDA_COMPILER, $CUDACXX, $PATH. CMAKE_CUDA_ARCHITECTURES is
# 90 unless it is given; preset `cuda` builds every architecture that we ship.
set(SLUICE_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found), ON, OFF")
set_property(CACHE SLUICE_CUDA PROPERTY STRINGS AUTO ON OFF)

# The driver API's header: all that device/cuda needs.
if(SLUICE_CUDA)
  find_path(SLUICE_CUDA_INCLUDE_DIR cuda.h HINTS ENV CUDA_PATH ENV CUDA_HOME
    PATHS /usr/local/cuda PATH_SUFFIXES include)
else()
  set(SLUICE_CUDA_INCLUDE_DIR "")
endif()

set(SLUICE_HAS_CUDA OFF)
string(TOUPPER "${SLUICE_CUDA}" wish)
if(wish STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(SLUICE_HAS_CUDA ON)
  endif()
elseif(SLUICE_CUDA)
  set(SLUICE_HAS_CUDA ON)
endif()

if(SLUICE_HAS_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures")
  endif()
  # The oldest GPU that works: 80 for bf16 products and asynchronous copies, or the oldest with code here.
  string(REGEX MATCHALL "[0-9]+" numbers "${CMAKE_CUDA_ARCHITECTURES}")
  list(APPEND numbers 999)  # "native" and the like say none
  list(SORT numbers COMPARE NATURAL)
  list(GET numbers 0 SLUICE_CUDA_OLDEST)
  if(SLUICE_CUDA_OLDEST LESS 80 OR SLUICE_CUDA_OLDEST EQUAL 999)
    set(SLUICE_CUDA_OLDEST 80)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # CMake 3.25.1 does not know yet that nvcc has C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  # One binary starts on a machine that has nothing of CUDA: the runtime is linked statically.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

  # --expt-relaxed-constexpr: device code calls base's constexpr functions (kernels/cuda/numeric.cuh).
  add_library(sluice_cuda_flags INTERFACE)
  target_compile_options(sluice_cuda_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-ffp-contract=off,-fno-math-errno>")
  if(SLUICE_WERROR)
    target_compile_options(sluice_cuda_flags INTERFACE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
  endif()
endif()
message(STATUS "CUDA backend: ${SLUICE_HAS_CUDA}")
