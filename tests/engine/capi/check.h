/* Checks for C tests: each failure prints its line, and main() returns check_result(). */
#ifndef SLUICE_TESTS_ENGINE_CAPI_CHECK_H
#define SLUICE_TESTS_ENGINE_CAPI_CHECK_H
#include <sluice/sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_failures = 0;

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      ++check_failures;                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                           \
  } while (0)

/* The call must have this status; its sentence is printed if not. */
#define EXPECT(status, call) check_status((status), (call), #call, __FILE__, __LINE__)

static void check_status(sluice_status wanted, sluice_status found, const char* call,
                         const char* file, int line) {
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  if (found == wanted) return;
  ++check_failures;
  fprintf(stderr, "%s:%d: %s gave %s, not %s\n", file, line, call, sluice_status_name(found),
          sluice_status_name(wanted));
  if (found != SLUICE_OK && sluice_error(&info) == SLUICE_OK) {
    fprintf(stderr, "    %s\n", info.message);
  }
}

static int check_result(void) {
  if (check_failures > 0) fprintf(stderr, "%d checks failed\n", check_failures);
  return check_failures > 0;
}
#endif
