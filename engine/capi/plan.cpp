// Plans of training runs.
#include <string>
#include <utility>

#include "engine/capi/call.hpp"
#include "engine/host/plan_request.hpp"
#include "engine/host/session_plan.hpp"

sluice_status sluice_plan(const char* request_json, const char** answer_json) {
  return sluice::capi::run_call("sluice_plan", [&] {
    const std::string request = sluice::capi::required_text(request_json, "request_json");
    sluice::capi::required(answer_json, "answer_json");
    sluice::host::PlanAnswer answer = sluice::host::answer_plan(request);
    thread_local std::string text;
    text = std::move(answer.json);
    *answer_json = text.c_str();
    if (answer.refusal) throw sluice::host::Refused(*answer.refusal);
  });
}
