// A request's configuration becomes TOML text, so that it is checked as a person's file would be:
// one line for each value, with the path of its members as a dotted key.
#include "engine/host/plan_request.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "engine/config/config.hpp"
#include "engine/host/host_engine.hpp"
#include "engine/planner/price/bundled_profiles.hpp"
#include "engine/train/plan/events.hpp"
#include "engine/train/plan/plan_outlook.hpp"
#include "engine/train/plan/prepare.hpp"

namespace sluice::host {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostRequestBytes = kMiB;
constexpr int kMostDepth = 8;  // of members; memory.place.saved.qkv, the deepest key, has 4
constexpr const char* kRequest = "the request";

Json parse_request(const std::string& request) {
  if (request.size() > kMostRequestBytes) throw InputError("the request has more than 1 MiB");
  std::vector<std::set<std::string>> open;  // members of the objects around the present place
  const auto check = [&open](int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (depth > kMostDepth + 1) throw InputError("the request is nested too deeply");
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event == Event::key && !open.back().insert(value.get<std::string>()).second) {
      throw InputError("the request has the member '" + shown(value.get<std::string>()) +
                       "' twice in one object");
    }
    return true;
  };
  Json parsed;
  try {
    parsed = parse_json(request, check);
  } catch (const Json::parse_error& error) {
    throw InputError("the request is not JSON: the error is at byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {
    throw InputError(
        "the request is not JSON that can be read: a number or a text is out of range");
  }
  if (!parsed.is_object()) throw InputError("the request is not a JSON object");
  for (const auto& [name, value] : parsed.items()) {
    if (name != "config" && name != "hardware" && name != "world") {
      throw InputError("the request has a member '" + shown(name) +
                       "'; it may have config, hardware and world");
    }
  }
  return parsed;
}

// A JSON string is a TOML string, and so are its numbers and lists.
void append_toml(const Json& value, const std::string& path, std::string& out) {
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      append_toml(member, path + (path.empty() ? "" : ".") + json_text(Json(name)), out);
    }
    return;
  }
  if (value.is_null()) throw InputError("the request's config has null at " + shown(path));
  out += path + " = " + json_text(value) + '\n';
}

// Where a wheel, a build or an installation (lib, or lib/x86_64-linux-gnu) has the profiles, seen
// from the library.
std::string profile_directory() {
  namespace fs = std::filesystem;
  Dl_info found{};
  std::error_code unknown;
  const auto* const here = reinterpret_cast<const void*>(&answer_plan);
  if (::dladdr(here, &found) == 0 || found.dli_fname == nullptr) return {};
  fs::path folder = fs::canonical(found.dli_fname, unknown).parent_path();
  if (unknown) return {};
  for (int levels = 0; levels < 2; ++levels) {
    folder = folder.parent_path();
    const fs::path shared = folder / "share" / "sluice" / "hardware";
    if (fs::is_directory(shared, unknown)) return shared.string();
  }
  return {};
}

planner::HardwareProfile hardware_of(const Json& request) {
  if (!request.contains("hardware")) {
    return planner::load_profile_or_default(planner::default_profile_path());
  }
  if (!request["hardware"].is_string()) {
    throw InputError("the request's hardware is not a text; use a profile's name or its path");
  }
  return planner::load_named_profile(request["hardware"].get<std::string>(), profile_directory());
}

config::Config config_of(const Json& request) {
  if (!request.contains("config")) throw InputError("the request has no config");
  std::vector<std::string> overrides;
  if (request.contains("world")) {
    if (!request["world"].is_number_unsigned()) {
      throw InputError("the request's world is not a number of ranks");
    }
    overrides.push_back("parallel.data=" + json_text(request["world"]));
  }
  const Json& given = request["config"];
  if (given.is_string()) {
    return config::load_config(given.get<std::string>(), overrides);
  }
  if (!given.is_object()) throw InputError("the request's config is neither an object nor a path");
  std::string text;
  append_toml(given, "", text);
  return config::parse_config(text, kRequest, overrides);
}

// Products of bf16 on the host have workspaces that only the library of products knows.
void refuse_unknown_workspaces(const config::Config& config,
                               const planner::HardwareProfile& hardware) {
  config::Config settled = config;
  train::settle_described_backend(settled, hardware);
  if (settled.memory.backend != config::Config::Backend::kHost ||
      settled.train.precision != config::Config::Precision::kBF16 ||
      !__builtin_cpu_supports("avx512bf16")) {
    return;
  }
  throw Unsupported(
      "this CPU multiplies bf16 itself, and the library does not know the workspaces of that; plan "
      "with `sluice plan`, for a GPU, or with train.precision = \"fp32\"");
}

// The tier that lacks most.
Refused refused(const planner::Refusal& refusal) {
  Tier tier = Tier::kDevice;
  std::uint64_t most = 0;
  for (const Tier each : kTiers) {
    const auto at = static_cast<std::size_t>(each);
    const std::uint64_t needed = refusal.needed_bytes[at], there = refusal.available_bytes[at];
    if (needed <= there || needed - there <= most) continue;
    most = needed - there;
    tier = each;
  }
  const auto at = static_cast<std::size_t>(tier);
  return {refusal.sentence(), tier, refusal.needed_bytes[at], refusal.available_bytes[at]};
}

}  // namespace

PlanAnswer answer_plan(const std::string& request) {
  const Json parsed = parse_request(request);
  const planner::HardwareProfile hardware = hardware_of(parsed);
  const config::Config config = config_of(parsed);
  config::check_supported(config);
  refuse_unknown_workspaces(config, hardware);
  train::Prepared prepared = train::prepare_described(config, hardware);
  if (const planner::Refusal* refusal = prepared.refusal()) {
    return {json_text(train::refused_event(*refusal)), refused(*refusal)};
  }
  return {json_text(train::complete_event(prepared)), {}};
}

}  // namespace sluice::host
