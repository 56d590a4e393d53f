# SLUICE_CUDA: AUTO builds the CUDA backend where nvcc is found, ON demands it, OFF leaves it out.
# Sets SLUICE_HAS_CUDA. Without nvcc nothing of CUDA is needed or looked for.
#
# nvcc is found as CMake finds it: CMAKE_CUDA_COMPILER, $CUDACXX, $PATH. CMAKE_CUDA_ARCHITECTURES, unless
# it is given (or $CUDAARCHS), names the GPUs of this machine. Without a GPU it is SLUICE_CUDA_ABSENT_GPU:
# A100 (8.0; Ada's 8.9 runs its code too), H100 (9.0) and Blackwell's cards (12.0).
set(SLUICE_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found), ON, OFF")
set_property(CACHE SLUICE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SLUICE_CUDA_ABSENT_GPU "80;90;120" CACHE STRING "GPU architectures where no GPU is found")
include(SluiceArchitectures)

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
    if(DEFINED ENV{CUDAARCHS})
      set(architectures "$ENV{CUDAARCHS}")
    else()
      sluice_architectures_here(architectures)
      if(NOT architectures)
        set(architectures ${SLUICE_CUDA_ABSENT_GPU})
      endif()
    endif()
    set(CMAKE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "GPU architectures")
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # The code that the kernels' factory compares with a GPU ("80,90-real"). Of `native`, `all` and `all-major`
  # no numbers are known here: 8.0 and later count as built.
  if(CMAKE_CUDA_ARCHITECTURES MATCHES "^[0-9]")
    list(JOIN CMAKE_CUDA_ARCHITECTURES "," SLUICE_CUDA_CODE)
  else()
    set(SLUICE_CUDA_CODE 80)
  endif()
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
if(SLUICE_HAS_CUDA)
  message(STATUS "CUDA backend: for ${CMAKE_CUDA_ARCHITECTURES}")
else()
  message(STATUS "CUDA backend: OFF")
endif()
