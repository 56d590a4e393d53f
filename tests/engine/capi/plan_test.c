/* Plans by the library. Without arguments: requests that are wrong, and a refusal. With a request:
 * prints the answer, which check_plan compares with the program's. */
#include "tests/engine/capi/check.h"

#define MODEL                                                                                \
  "\"model\":{\"family\":\"llama\",\"layers\":4,\"hidden\":256,\"heads\":4,\"vocab\":1024}," \
  "\"train\":{\"seq\":128,\"micro_batch\":1,\"accumulate\":1,\"precision\":\"fp32\"}"

static void expect_refused(const char* request, sluice_status status, const char* word) {
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  const char* answer = "untouched";
  EXPECT(status, sluice_plan(request, &answer));
  EXPECT(SLUICE_OK, sluice_error(&info));
  if (strstr(info.message, word) == NULL) {
    ++check_failures;
    fprintf(stderr, "%s\n    says: %s\n    and not: %s\n", request, info.message, word);
  }
  if (status == SLUICE_E_REFUSED) {
    CHECK(info.tier == SLUICE_TIER_DEVICE && info.available_bytes == 1 << 20);
    CHECK(info.requested_bytes > info.available_bytes);
  }
  CHECK(status == SLUICE_E_REFUSED ? strstr(answer, "suggest") != NULL
                                   : strcmp(answer, "untouched") == 0);
}

int main(int argc, char** argv) {
  const char *answer = NULL, *other = NULL;
  if (argc > 1) {
    EXPECT(SLUICE_OK, sluice_plan(argv[1], &answer));
    if (answer != NULL) puts(answer);
    return check_result();
  }
  expect_refused("", SLUICE_E_INPUT, "not JSON");
  expect_refused("[]", SLUICE_E_INPUT, "not a JSON object");
  expect_refused("{\"config\":{}", SLUICE_E_INPUT, "at byte 13");
  expect_refused("{\"config\":{\"train\":{\"seq\":8,\"seq\":9}}}", SLUICE_E_INPUT, "'seq' twice");
  expect_refused("{}", SLUICE_E_INPUT, "no config");
  expect_refused("{\"config\":7}", SLUICE_E_INPUT, "neither an object nor a path");
  expect_refused("{\"config\":{},\"x\":1}", SLUICE_E_INPUT, "'x'");
  expect_refused("{\"config\":{},\"world\":-1}", SLUICE_E_INPUT, "world");
  expect_refused("{\"config\":{},\"hardware\":\"no such machine\"}", SLUICE_E_INPUT,
                 "no such machine");
  expect_refused("{\"config\":\"/nonexistent/x.toml\"}", SLUICE_E_INPUT, "/nonexistent/x.toml");
  expect_refused("{\"config\":{\"train\":{\"seqq\":7}}}", SLUICE_E_INPUT, "train.seqq");
  expect_refused("{\"config\":{\"train\":{\"seq\":null}}}", SLUICE_E_INPUT, "null");
  expect_refused("{\"config\":{\"a\\\" = 1\\nx = 2\":1}}", SLUICE_E_INPUT, "unknown key");
  expect_refused("{\"config\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":1}}}}}}}}}",
                 SLUICE_E_INPUT, "");
  expect_refused("{\"config\":[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]}", SLUICE_E_INPUT, "deeply");
  expect_refused("{\"config\":{" MODEL
                 ",\"memory\":{\"backend\":\"host\",\"device\":\"1MiB\",\"pinned\":\"64MiB\"}}}",
                 SLUICE_E_REFUSED, "memory.device");
  EXPECT(SLUICE_OK,
         sluice_plan("{\"config\":{" MODEL ",\"memory\":{\"backend\":\"host\",\"device\":\"64MiB\","
                     "\"pinned\":\"256MiB\"}}}",
                     &answer));
  CHECK(answer != NULL && strstr(answer, "\"event\":\"plan\"") != NULL);
  /* The text of the last call stays when a call fails for another reason. */
  EXPECT(SLUICE_E_INPUT, sluice_plan("{}", &other));
  CHECK(other == NULL && answer != NULL && strstr(answer, "\"outlook\":{") != NULL);
  return check_result();
}
