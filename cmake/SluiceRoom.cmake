# One target per folder ("room"), flags in one place.
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

# -ffp-contract=off: the arithmetic contract forbids fused multiply-adds that the source does not
# write (gcc contracts intrinsics too).
add_library(sluice_flags INTERFACE)
# CUDA's compiler has flags of its own (SluiceCuda).
set(host_only $<NOT:$<COMPILE_LANGUAGE:CUDA>>)
# No -Wshadow where several sources are one unit: a local name may be one that another source of the
# unit has in its anonymous namespace.
set(shadow "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wshadow>")
target_compile_options(sluice_flags INTERFACE
  "$<${host_only}:-Wall;-Wextra;${shadow};-Wnon-virtual-dtor;-ffp-contract=off;-fno-math-errno>")
# g++ 12 sees overlap in "literal" + std::string&& where there is none (GCC bug 105651).
target_compile_options(sluice_flags INTERFACE
  $<$<AND:${host_only},$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
target_include_directories(sluice_flags INTERFACE "${CMAKE_SOURCE_DIR}")
if(SLUICE_WERROR)
  target_compile_options(sluice_flags INTERFACE $<${host_only}:-Werror>)
endif()
if(SLUICE_SANITIZE)
  target_compile_options(sluice_flags INTERFACE
    "$<${host_only}:-fsanitize=${SLUICE_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  target_link_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()

# sluice_room(NAME SOURCES … [DEPS …] [PRIVATE_DEPS …]) makes library sluice_NAME, alias sluice::NAME.
function(sluice_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(sluice_${name} STATIC ${ROOM_SOURCES})
  add_library(sluice::${name} ALIAS sluice_${name})
  target_link_libraries(sluice_${name} PUBLIC sluice_flags ${ROOM_DEPS} PRIVATE ${ROOM_PRIVATE_DEPS})
endfunction()

# Tests are compiled several sources to a unit: GoogleTest and the rooms' headers are then read once for
# all of them. OFF for clang-tidy, which works on single sources.
option(SLUICE_TEST_UNITY "Compile several test sources as one unit" ON)

# sluice_test(NAME SOURCES … DEPS … [APART …] [LABELS …] [TIMEOUT s] [SIMULATED_CUDA] [DESCRIBED_GPU]):
# one GoogleTest binary. ctest has one entry for each suite of it (NAME/SUITE); with label `long`, one for
# each test. Sources of a binary share units, and so must not define one name in their anonymous
# namespaces twice; those listed under APART as well have a unit of their own. SIMULATED_CUDA and
# DESCRIBED_GPU choose the libcuda.so.1 that the binary finds (tests/support).
function(sluice_test name)
  cmake_parse_arguments(TEST "SIMULATED_CUDA;DESCRIBED_GPU;PURE" "TIMEOUT" "SOURCES;DEPS;APART;LABELS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 600)
  endif()
  add_executable(test_${name} ${TEST_SOURCES})
  target_link_libraries(test_${name} PRIVATE ${TEST_DEPS} GTest::gtest GTest::gtest_main)
  set_target_properties(test_${name} PROPERTIES
    UNITY_BUILD ${SLUICE_TEST_UNITY} UNITY_BUILD_BATCH_SIZE 7)
  if(TEST_APART)
    set_source_files_properties(${TEST_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  # The tested code is optimised; the tests themselves compile in two thirds of the time at -O1.
  target_compile_options(test_${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  # With checks before each access -O1 takes twice as long as -Og.
  if(SLUICE_SANITIZE)
    target_compile_options(test_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Og>)
  endif()
  # Label `memory`: the short suites of the rooms that own memory, threads and files. `tests_memory` builds
  # them; the sanitizer stage of tools/test runs them (ctest -L memory). The tools on top of the rooms are
  # left to --sanitizers-full, for their sources cost a third of a sanitizer build; so are PURE suites:
  # their code turns values into values, owns no memory, thread or file, and whole runs go through it as well.
  if(NOT TARGET tests_memory)
    add_custom_target(tests_memory)
  endif()
  # Label `ranks`: the suites of several ranks, as threads and processes, which `tools/test --ranks` builds and runs.
  if(NOT TARGET tests_ranks)
    add_custom_target(tests_ranks)
  endif()
  if("ranks" IN_LIST TEST_LABELS)
    add_dependencies(tests_ranks test_${name})
  endif()
  if("short" IN_LIST TEST_LABELS AND NOT TEST_PURE AND NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "/tests/tools(/|$)")
    list(APPEND TEST_LABELS memory)
    add_dependencies(tests_memory test_${name})
  endif()
  set(environment)
  if(TEST_SIMULATED_CUDA)
    set(environment "LD_LIBRARY_PATH=${SLUICE_SIMULATED_CUDA_FOLDER}")
    add_dependencies(test_${name} simulated_cuda_driver)
  elseif(TEST_DESCRIBED_GPU)
    set(environment "LD_LIBRARY_PATH=${SLUICE_DESCRIBED_GPU_FOLDER}")
    add_dependencies(test_${name} accepting_cuda_driver described_cuda_runtime)
  endif()
  sluice_register_suites(${name} "${environment}" "${TEST_LABELS}" ${TEST_TIMEOUT})
endfunction()

# sluice_register_suites(NAME ENVIRONMENT LABELS TIMEOUT): ctest asks the binary for its tests when ctest
# starts (SluiceTestSuites.cmake), so nothing is listed while building. Each entry leaves its results as
# XML in build/…/test_results.
function(sluice_register_suites name environment labels timeout)
  set(each_test OFF)
  if("long" IN_LIST labels)
    set(each_test ON)
  endif()
  set(entries "${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake")
  file(CONFIGURE OUTPUT "${entries}" @ONLY CONTENT [[
set(name "@name@")
set(binary "@CMAKE_RUNTIME_OUTPUT_DIRECTORY@/test_@name@")
set(folder "@CMAKE_CURRENT_BINARY_DIR@")
set(results "@CMAKE_BINARY_DIR@/test_results")
set(environment "@environment@")
set(labels "@labels@")
set(timeout "@timeout@")
set(each_test "@each_test@")
include("@CMAKE_SOURCE_DIR@/cmake/SluiceTestSuites.cmake")
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${entries}")
endfunction()
