// The trace of an engine's sessions and of the program itself.
#include <string>

#include "engine/capi/call.hpp"
#include "engine/capi/handles.hpp"

namespace {

// Events of some 200 bytes each: 2 GB.
constexpr std::uint64_t kMostTraceEvents = 10'000'000;

}  // namespace

using sluice::capi::required;
using sluice::capi::required_text;
using sluice::capi::run_call;

sluice_status sluice_trace_start(sluice_engine* engine, uint64_t most_events) {
  return run_call("sluice_trace_start", [&] {
    required(engine, "engine");
    if (most_events > kMostTraceEvents) throw sluice::InputError("most_events is above 1e7");
    engine->inner->trace().start(most_events);
  });
}

sluice_status sluice_trace_span(sluice_engine* engine, const char* track, const char* name,
                                int64_t begin_ns, int64_t end_ns) {
  return run_call("sluice_trace_span", [&] {
    required(engine, "engine");
    engine->inner->trace().add_span(required_text(track, "track"), required_text(name, "name"),
                                    begin_ns, end_ns);
  });
}

sluice_status sluice_trace_counter(sluice_engine* engine, const char* name, int64_t at_ns,
                                   double value) {
  return run_call("sluice_trace_counter", [&] {
    required(engine, "engine");
    engine->inner->trace().add_counter(required_text(name, "name"), at_ns, value);
  });
}

sluice_status sluice_trace_mark(sluice_engine* engine, const char* phase) {
  return run_call("sluice_trace_mark", [&] {
    required(engine, "engine");
    engine->inner->trace().mark(required_text(phase, "phase"));
  });
}

sluice_status sluice_trace_write(sluice_engine* engine, const char* path, int32_t format) {
  return run_call("sluice_trace_write", [&] {
    required(engine, "engine");
    const std::string file = required_text(path, "path");
    if (format != SLUICE_FORMAT_JSON) {
      throw sluice::InputError("format is " + std::to_string(format) +
                               "; a trace is written as SLUICE_FORMAT_JSON");
    }
    engine->inner->write_trace(file);
  });
}
