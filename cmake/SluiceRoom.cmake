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
# Not for CUDA, whose compiler has its own (SluiceCuda).
set(host_only $<NOT:$<COMPILE_LANGUAGE:CUDA>>)
target_compile_options(sluice_flags INTERFACE
  "$<${host_only}:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-ffp-contract=off;-fno-math-errno>")
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

# sluice_test(NAME SOURCES … DEPS … [LABELS …] [TIMEOUT s] [SIMULATED_CUDA] [DESCRIBED_GPU]): one GoogleTest
# binary, one ctest entry per test. The libcuda.so.1 that it finds is that of tests/support/cuda_driver or of
# tests/support/described_gpu.
function(sluice_test name)
  cmake_parse_arguments(TEST "SIMULATED_CUDA;DESCRIBED_GPU" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 300)
  endif()
  add_executable(test_${name} ${TEST_SOURCES})
  target_link_libraries(test_${name} PRIVATE ${TEST_DEPS} GTest::gtest GTest::gtest_main)
  # What is tested is optimised; the tests themselves are compiled in two thirds of the time.
  target_compile_options(test_${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  # With checks before each access -O1 takes twice as long as -Og.
  if(SLUICE_SANITIZE)
    target_compile_options(test_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Og>)
  endif()
  # `tests_short` builds what the sanitizer presets run (ctest -L short).
  if(NOT TARGET tests_short)
    add_custom_target(tests_short)
  endif()
  if("short" IN_LIST TEST_LABELS)
    add_dependencies(tests_short test_${name})
  endif()
  include(GoogleTest)
  # A list inside PROPERTIES must reach ctest as one argument.
  string(REPLACE ";" "\\;" labels "${TEST_LABELS}")
  set(environment)
  if(TEST_SIMULATED_CUDA)
    set(environment ENVIRONMENT "LD_LIBRARY_PATH=${SLUICE_SIMULATED_CUDA_FOLDER}")
    add_dependencies(test_${name} simulated_cuda_driver)
  elseif(TEST_DESCRIBED_GPU)
    set(environment ENVIRONMENT "LD_LIBRARY_PATH=${SLUICE_DESCRIBED_GPU_FOLDER}")
    add_dependencies(test_${name} accepting_cuda_driver described_cuda_runtime)
  endif()
  gtest_discover_tests(test_${name} TEST_PREFIX "${name}/" DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS "${labels}" ${environment})
endfunction()
