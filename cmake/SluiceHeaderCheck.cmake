# Target `check_headers`: every header compiles alone, first in a translation unit. Part of tools/test,
# not of `all`. A header that some source includes before all else is seen to by that source; the others get
# a unit of their own. Globbed, unlike sources: a header must not escape the check by not being listed.
#
# Headers of CUDA folders are checked where nvcc is found: as tests compile kernels for the CPU, and
# *_device.cuh, which only a GPU can run, by nvcc.

# sluice_header_units(LIST SUFFIX HEADERS…): one source each that includes nothing else.
function(sluice_header_units list suffix)
  set(units)
  foreach(header ${ARGN})
    string(REGEX REPLACE "[/.]" "_" stem "${header}")
    set(unit "${CMAKE_BINARY_DIR}/check_headers/${stem}.${suffix}")
    file(CONFIGURE OUTPUT "${unit}" CONTENT "#include \"${header}\"  // twice: has its guard\n#include \"${header}\"\n")
    list(APPEND units "${unit}")
  endforeach()
  set(${list} ${units} PARENT_SCOPE)
endfunction()

# sluice_first_includes(LIST FOLDER): the headers that a source of a target of it, or of a folder
# below, includes first.
function(sluice_first_includes list folder)
  set(first)
  get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(sources ${target} SOURCES)
    get_target_property(source_dir ${target} SOURCE_DIR)
    list(FILTER sources INCLUDE REGEX "[.](cpp|cu)$")
    foreach(source ${sources})
      get_filename_component(source "${source}" ABSOLUTE BASE_DIR "${source_dir}")
      file(STRINGS "${source}" include REGEX "^#include" LIMIT_COUNT 1)
      if(include MATCHES "^#include \"([^\"]+)\"")
        list(APPEND first "${CMAKE_MATCH_1}")
      endif()
    endforeach()
  endforeach()
  get_property(folders DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
  foreach(below ${folders})
    sluice_first_includes(below_first "${below}")
    list(APPEND first ${below_first})
  endforeach()
  set(${list} ${first} PARENT_SCOPE)
endfunction()

# sluice_header_target(NAME UNITS…)
function(sluice_header_target name)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${ARGN})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/include")
  # Nothing is run: no optimisation, no sanitizer, no debug information.
  target_compile_options(${name} PRIVATE $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-O0;-g0>)
  target_link_libraries(${name} PRIVATE sluice_flags Threads::Threads TBB::tbb
    nlohmann_json::nlohmann_json PkgConfig::URING PkgConfig::HWLOC PkgConfig::HWY
    PkgConfig::XXHASH PkgConfig::TOMLPLUSPLUS CLI11::CLI11)
  if(SLUICE_TESTS)
    target_link_libraries(${name} PRIVATE GTest::gmock)
  endif()
endfunction()

function(sluice_header_check)
  set(rooms base device allocator kernels collectives offload engine tools)
  if(SLUICE_TESTS)
    list(APPEND rooms tests)
  endif()
  set(headers)
  foreach(room ${rooms})
    file(GLOB_RECURSE found CONFIGURE_DEPENDS RELATIVE "${CMAKE_SOURCE_DIR}"
      "${CMAKE_SOURCE_DIR}/${room}/*.hpp" "${CMAKE_SOURCE_DIR}/${room}/*.cuh")
    list(APPEND headers ${found})
  endforeach()
  sluice_first_includes(seen "${CMAKE_SOURCE_DIR}")
  list(REMOVE_ITEM headers ${seen})
  set(cuda_headers ${headers})
  list(FILTER cuda_headers INCLUDE REGEX "/(cuda[a-z_]*|nccl)/")
  list(FILTER headers EXCLUDE REGEX "/(cuda[a-z_]*|nccl)/")
  sluice_header_units(units cpp ${headers})
  sluice_header_target(check_headers ${units})

  if(SLUICE_HAS_CUDA AND SLUICE_TESTS)
    set(device_headers ${cuda_headers})
    list(FILTER device_headers INCLUDE REGEX "_device\\.cuh$")
    list(FILTER cuda_headers EXCLUDE REGEX "_device\\.cuh$")
    sluice_header_units(units cpp ${cuda_headers})
    sluice_header_target(check_cuda_headers ${units})
    target_link_libraries(check_cuda_headers PRIVATE CUDA::toolkit)
    target_compile_definitions(check_cuda_headers PRIVATE
      "SLUICE_CUDA_EMULATION=\"tests/support/cuda_emulation/simt.hpp\"")
    target_compile_options(check_cuda_headers PRIVATE -Wno-unknown-pragmas)
    sluice_header_units(units cu ${device_headers})
    sluice_header_target(check_device_headers ${units})
    target_link_libraries(check_device_headers PRIVATE sluice_cuda_flags)
    add_dependencies(check_headers check_cuda_headers check_device_headers)
  endif()
endfunction()
sluice_header_check()
