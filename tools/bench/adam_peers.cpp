#include "tools/bench/adam_peers.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "tools/bench/peer_adam.hpp"

namespace sluice::bench {
namespace {

constexpr int kProtocol = 1;

// Parses an answer as a JSON object. Throws Error if it is none, or if it reports an error.
nlohmann::json parse_answer(const std::string& line) {
  constexpr std::size_t kShown = 120;
  nlohmann::json answer = try_parse_json(line);
  if (!answer.is_object()) {
    throw Error("bench adam: a peer's answer is not a JSON object: '" + line.substr(0, kShown) +
                "'");
  }
  if (const auto error = answer.find("error"); error != answer.end()) {
    throw Error("bench adam: " + (error->is_string() ? error->get<std::string>() : error->dump()));
  }
  return answer;
}

}  // namespace

std::optional<AdamPeers> AdamPeers::open(const std::string& python, int threads,
                                         std::int64_t elems) {
  return open(python, threads, elems, Deadlines());
}

std::optional<AdamPeers> AdamPeers::open(const std::string& python, int threads, std::int64_t elems,
                                         const Deadlines& deadlines) {
  std::optional<PeerProcess> process = PeerProcess::start(
      {python, "SCRIPT", "--threads", std::to_string(threads), "--elems", std::to_string(elems)},
      kPeerAdam);
  if (!process) return std::nullopt;
  AdamPeers peers(std::move(*process), elems, deadlines);
  peers.read_introduction(peers.process_.read_line(Deadline::after_seconds(deadlines.start_seconds),
                                                   "torch to load for bench adam (" + python + ")"),
                          threads);
  return peers;
}

AdamPeers::AdamPeers(PeerProcess process, std::int64_t elems, const Deadlines& deadlines)
    : process_(std::move(process)),
      step_deadline_seconds_(deadlines.step_seconds + static_cast<double>(elems) * 1e-6) {}

void AdamPeers::read_introduction(const std::string& line, int threads) {
  const nlohmann::json answer = parse_answer(line);
  try {
    if (answer.at("protocol") != kProtocol) {
      throw Error("bench adam: the peers speak protocol " + json_text(answer.at("protocol")) +
                  ", and this program " + std::to_string(kProtocol));
    }
    if (answer.at("threads") != threads) {
      throw Error("bench adam: the peers run " + json_text(answer.at("threads")) +
                  " threads, but " + std::to_string(threads) + " were asked for");
    }
    versions_ = answer.at("versions");
    if (!answer.at("missing").is_null()) missing_ = answer.at("missing");
    huge_page_bytes_ = answer.at("huge_page_bytes");
    for (const nlohmann::json& peer : answer.at("peers")) {
      variants_.push_back({peer.at("name"), peer.at("job"), peer.at("bytes_per_param")});
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(std::string("bench adam: the peers introduce themselves wrongly: ") + error.what());
  }
}

double AdamPeers::seconds(const std::string& variant) {
  const nlohmann::json answer = parse_answer(
      process_.ask(json_text(nlohmann::json{{"run", variant}}),
                   Deadline::after_seconds(step_deadline_seconds_), "a step of peer " + variant));
  const auto ran = answer.find("ran");
  const auto seconds = answer.find("seconds");
  if (ran == answer.end() || *ran != variant || seconds == answer.end() || !seconds->is_number() ||
      !(seconds->get<double>() > 0) || !std::isfinite(seconds->get<double>())) {
    throw Error("bench adam: peer " + variant + " answered " + json_text(answer) +
                " to a request for the seconds of one of its steps");
  }
  return seconds->get<double>();
}

std::string python_of(const std::string& venv) {
  std::string python = (std::filesystem::path(venv) / "bin" / "python").string();
  if (::access(python.c_str(), X_OK) != 0) {
    throw InputError("--peers " + venv + ": there is no " + python +
                     "; name a virtual environment that tools/bench/peers has made");
  }
  return python;
}

std::optional<std::string> default_peers_python() {
  const auto absolute = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value != nullptr && value[0] == '/' ? value : "";
  };
  std::filesystem::path cache = absolute("XDG_CACHE_HOME");
  if (cache.empty()) {
    const std::string home = absolute("HOME");
    if (home.empty()) return std::nullopt;
    cache = std::filesystem::path(home) / ".cache";
  }
  const std::filesystem::path venv = cache / "sluice" / "bench_peers";
  // tools/bench/peers writes this file last, when the environment is complete.
  std::error_code unreadable;
  if (!std::filesystem::exists(venv / "ready", unreadable)) return std::nullopt;
  const std::filesystem::path python = venv / "bin" / "python";
  if (::access(python.c_str(), X_OK) != 0) return std::nullopt;
  return python.string();
}

}  // namespace sluice::bench
