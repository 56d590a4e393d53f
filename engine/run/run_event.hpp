// The events of a run: JSON objects, one on a line of events.jsonl and of `--json` output.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>

namespace sluice::run {

using RunEvent = nlohmann::ordered_json;
using EventSink = std::function<void(const RunEvent&)>;

}  // namespace sluice::run
