# Run by ctest, not by the build: registers the suites of one GoogleTest binary.
#
# Input: name, binary, folder (where the tests run), results (where the XML files go), environment, labels,
# timeout and each_test (one entry for each test instead of each suite). ctest's language has no functions
# and few commands; `add_test` and `set_tests_properties` take lists as they stand.
#
# `--gtest_list_tests` prints a suite as `Suite.` or `Instance/Suite/0.  # TypeParam = …` from the first
# column, and below it each of its tests after two spaces.
if(NOT EXISTS "${binary}")
  add_test("${name}_NOT_BUILT" "${name}_NOT_BUILT")
  set_tests_properties("${name}_NOT_BUILT" PROPERTIES LABELS "${labels}")
else()
  set(run "${binary}")
  if(NOT "${environment}" STREQUAL "")
    # CMAKE_COMMAND is not set here.
    set(run env "${environment}" "${binary}")
  endif()
  execute_process(COMMAND ${run} --gtest_list_tests
    OUTPUT_VARIABLE listed RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    set(listed "")
    add_test("${name}_CANNOT_LIST" "${name}_CANNOT_LIST")
    set_tests_properties("${name}_CANNOT_LIST" PROPERTIES LABELS "${labels}")
  endif()
  string(REGEX REPLACE "[ \t]*#[^\n]*" "" listed "${listed}")
  string(REPLACE "\n" ";" listed "${listed}")
  set(suite "")
  foreach(line ${listed})
    set(entry "")
    if("${line}" MATCHES "^([^ ]+)\\.$")
      set(suite "${CMAKE_MATCH_1}")
      if(NOT each_test)
        set(entry "${suite}")
        set(filter "${suite}.*")
      endif()
    elseif(each_test AND "${line}" MATCHES "^  ([^ ]+)$")
      set(entry "${suite}.${CMAKE_MATCH_1}")
      set(filter "${entry}")
    endif()
    # A disabled suite is listed, and is not run.
    if(NOT "${entry}" STREQUAL "" AND NOT "${entry}" MATCHES "DISABLED_")
      string(REPLACE "/" "-" file "${name}-${entry}")
      add_test("${name}/${entry}" "${binary}" "--gtest_filter=${filter}"
        "--gtest_output=xml:${results}/${file}.xml")
      set_tests_properties("${name}/${entry}" PROPERTIES WORKING_DIRECTORY "${folder}"
        TIMEOUT "${timeout}" LABELS "${labels}")
      if(NOT "${environment}" STREQUAL "")
        set_tests_properties("${name}/${entry}" PROPERTIES ENVIRONMENT "${environment}")
      endif()
    endif()
  endforeach()
endif()
