# Target `check_headers`: every header compiles alone, first in its own translation unit. Part of
# tools/test, not of `all`. Globbed, unlike sources: a header must not escape the check by not being listed.
function(sluice_header_check)
  set(rooms base device allocator kernels collectives offload engine tools)
  if(SLUICE_TESTS)
    list(APPEND rooms tests)
  endif()
  set(headers)
  foreach(room ${rooms})
    file(GLOB_RECURSE found CONFIGURE_DEPENDS RELATIVE "${CMAKE_SOURCE_DIR}"
      "${CMAKE_SOURCE_DIR}/${room}/*.hpp")
    list(APPEND headers ${found})
  endforeach()
  # CUDA headers need nvcc's include path.
  list(FILTER headers EXCLUDE REGEX "/cuda(_driver)?/")

  set(units)
  foreach(header ${headers})
    string(REGEX REPLACE "[/.]" "_" stem "${header}")
    set(unit "${CMAKE_BINARY_DIR}/check_headers/${stem}.cpp")
    file(CONFIGURE OUTPUT "${unit}" CONTENT "#include \"${header}\"  // twice: has its guard\n#include \"${header}\"\n")
    list(APPEND units "${unit}")
  endforeach()
  add_library(check_headers OBJECT EXCLUDE_FROM_ALL ${units})
  # Nothing is run: no optimisation, no sanitizer, no debug information.
  target_compile_options(check_headers PRIVATE -O0 -g0)
  target_link_libraries(check_headers PRIVATE sluice_flags Threads::Threads TBB::tbb
    nlohmann_json::nlohmann_json PkgConfig::URING PkgConfig::HWLOC PkgConfig::HWY
    PkgConfig::XXHASH PkgConfig::TOMLPLUSPLUS CLI11::CLI11)
  if(SLUICE_TESTS)
    target_link_libraries(check_headers PRIVATE GTest::gmock)
  endif()
endfunction()
sluice_header_check()
