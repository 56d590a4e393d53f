#include "tests/tools/report/run_fixture.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace sluice::testing {

namespace {

constexpr const char* kConfig = R"([model]
family = "gpt2"
layers = 4

[memory]
device = "8MiB"
pinned = "16MiB"
storage = 1073741824
)";

constexpr const char* kPlan = R"({"event":"plan","fits":true,
 "peak_bytes":{"device":6291456,"pinned":12582912,"storage":50331648},
 "bytes_moved":{"upload":8388608,"download":4194304,"storage_read":8388608,"storage_write":0},
 "step_time_s":0.02,"bound_by":"storage","parameters":1000000,"state_bytes":16000000})";

std::string events() {
  std::ostringstream out;
  out << kPlan << '\n';
  std::string text = out.str();
  std::replace(text.begin(), text.end() - 1, '\n', ' ');  // one event, one line
  out.str({});
  for (int step = 1; step <= 40; ++step) {
    out << R"({"event":"step","step":)" << step << R"(,"loss":)" << 5.5 - 0.07 * step
        << R"(,"grad_norm":)" << 1.0 + 2.0 / step << R"(,"lr":0.001,"tokens_per_s":)"
        << 1000 + 5 * (step % 7) << R"(,"step_time_s":)" << (step == 1 ? 0.9 : 0.021)
        << R"(,"stalled_fraction":0.3)";
    if (step > 30) {
      out << R"(,"redone":)" << (step % 4 == 0 ? "true" : "false") << R"(,"redo_time_s":)"
          << (step % 4 == 0 ? 0.25 : 0.0);
    }
    if (step == kFixtureTracedStep) {
      out << R"(,"stalls":{"compute_s":0.0095,"stalled_s":0.0115,"by_cause_s":)"
          << R"({"storage_read":0.0053,"hand_over":0.0062}},)"
          << R"("measured_peak_bytes":{"device":6000000,"pinned":12000000,"storage":50331648})";
    }
    out << R"(,"bytes_moved":{"upload":8388608,"download":4194304,)"
        << R"("storage_read":8388608,"storage_write":4096}})" << '\n';
    if (step % 10 == 0) {
      out << R"({"event":"eval","step":)" << step << R"(,"loss":)" << 5.6 - 0.07 * step << "}\n";
    }
  }
  out << R"({"event":"done","steps":40,"weights_hash":"00112233445566778899aabbccddeeff",)"
      << R"("peak_bytes":{"device":6291456,"pinned":12582912,"storage":50331648},)"
      << R"("measured_peak_bytes":{"device":6291456,"pinned":12582912,"storage":50000000}})"
      << '\n';
  return text + out.str();
}

}  // namespace

void record_step(TraceRecorder& trace, std::int64_t start_ns, double slower) {
  const TraceId compute = trace.intern("compute");
  const TraceId read = trace.intern("storage_read");
  const TraceId h2d = trace.intern("h2d");
  const TraceId forward = trace.intern("Forward");
  const TraceId storage_read = trace.intern("StorageRead");
  const TraceId upload = trace.intern("Upload");
  const TraceId device_weight = trace.intern("device/weight");
  const TraceId device_activation = trace.intern("device/activation");
  const TraceId pinned_weight = trace.intern("pinned/weight");
  const auto read_ns = static_cast<std::int64_t>(static_cast<double>(kFixtureReadNs) * slower);
  constexpr std::uint64_t kUnitBytes = 2u << 20;
  std::int64_t compute_free_ns = start_ns;
  for (int unit = 0; unit < kFixtureUnits; ++unit) {
    // A read starts when the one before it is half done.
    const std::int64_t read_begin = start_ns + unit * read_ns / 2;
    const std::int64_t read_end = read_begin + read_ns;
    const std::int64_t upload_end = read_end + 200'000;
    const std::int64_t forward_begin = std::max(compute_free_ns, upload_end);
    const std::int64_t forward_end = forward_begin + kFixtureForwardNs;
    trace.span(
        {read, storage_read, read_begin, read_end, unit, -1, kUnitBytes, kFixtureTracedStep});
    trace.span({h2d, upload, read_end, upload_end, unit, -1, kUnitBytes, kFixtureTracedStep});
    trace.span({compute, forward, forward_begin, forward_end, unit, 0, 0, kFixtureTracedStep});
    trace.counter(pinned_weight, read_begin, static_cast<double>(2 * kUnitBytes));
    trace.counter(device_weight, upload_end, static_cast<double>(2 * kUnitBytes));
    trace.counter(device_activation, forward_end, 262144.0 * (unit + 1));
    trace.counter(device_weight, forward_end, static_cast<double>(kUnitBytes));
    compute_free_ns = forward_end;
  }
}

RunFixture::RunFixture() {
  TraceRecorder plan;
  record_step(plan, 0, 1.0);
  TraceRecorder run;
  record_step(run, 987'654'321'000, 1.1);
  write("config.toml", kConfig);
  write("plan.json", kPlan);
  write("events.jsonl", events());
  write("plan_trace.json", plan.to_json());
  write("trace.json", run.to_json());
}

void RunFixture::write(const std::string& name, const std::string& text) const {
  std::ofstream(path() / name, std::ios::binary) << text;
}

}  // namespace sluice::testing
