#include "engine/train/world.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/run/resume_point.hpp"

namespace sluice::train {
namespace {

// The deadline of a meeting at the start. A rank may plan, or verify a checkpoint, while the others
// wait; the control plane finds one that is gone.
constexpr double kStartSeconds = 3600;

// The outcome of a part of the start on one rank, as it travels: empty, or three lines.
struct Outcome {
  int status = 0;  // exit status; 0: it went well
  std::string code, text;
};
constexpr const char* kNoStateCode = "no_state";

std::string format_outcome(const Outcome& outcome) {
  return std::to_string(outcome.status) + "\n" + outcome.code + "\n" + outcome.text;
}
Outcome parse_outcome(const std::string& message) {
  if (message.empty()) return {};
  const std::size_t first = message.find('\n');
  const std::size_t second = message.find('\n', first + 1);
  SLUICE_CHECK(first != std::string::npos && second != std::string::npos);
  return {std::stoi(message.substr(0, first)), message.substr(first + 1, second - first - 1),
          message.substr(second + 1)};
}

std::string run_part(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const run::NoState& error) {
    return format_outcome({error.exit_status(), kNoStateCode, error.what()});
  } catch (const Error& error) {
    return format_outcome({error.exit_status(), std::string(error.code()), error.what()});
  } catch (const std::exception& error) {
    return format_outcome({3, "fault", error.what()});
  }
}

// The operation that a rank was in when a fault of another rank ended it.
std::optional<std::string> operation_of(const std::exception& error) {
  if (const auto* broken = dynamic_cast<const collectives::CommunicationError*>(&error)) {
    return broken->call;
  }
  return std::nullopt;
}

}  // namespace

World::World(const WorldOptions& options) : options_(options) {
  if (options_.place.size == 1) return;
  try {
    plane_ = std::make_unique<collectives::ControlPlane>(options_.place, "", options_.control);
  } catch (const collectives::RanksDisagree& error) {
    throw JobError(error.what(), error.exit_status(), std::string(error.code()),
                   error.is_already_reported());
  }
}

std::string World::describe(int rank) const {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size());
}

std::vector<std::string> World::gather(const std::string& name, const std::string& message) {
  if (alone()) return {message};
  return plane_->gather(name, message, Deadline::after_seconds(kStartSeconds));
}

std::string World::share(const std::string& name, const std::string& message) {
  return gather(name, is_first() ? message : std::string()).front();
}

void World::agree(const std::string& name, const std::function<void()>& body) {
  if (alone()) return body();
  const std::vector<std::string> messages = gather(name, run_part(body));
  const auto failed = std::find_if(messages.begin(), messages.end(),
                                   [](const std::string& message) { return !message.empty(); });
  if (failed == messages.end()) return;
  const Outcome outcome = parse_outcome(*failed);
  if (outcome.code == kNoStateCode) throw run::NoState(outcome.text);
  const auto rank = static_cast<int>(failed - messages.begin());
  // The first rank speaks for the job, because most errors are the same on each rank.
  const std::string where = rank == 0 ? "" : describe(rank) + ": ";
  throw JobError(where + outcome.text, outcome.status, outcome.code, !is_first());
}

void World::check_equal(const std::string& name, const Facts& facts, const std::string& advice) {
  if (alone()) return;
  std::string own;
  for (const auto& [fact, value] : facts) own += value + '\0';
  const std::vector<std::string> all = gather(name, own);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto value_at = [&](std::size_t of, std::size_t fact) {
      std::size_t begin = 0;
      for (std::size_t i = 0; i < fact; ++i) begin = all[of].find('\0', begin) + 1;
      return all[of].substr(begin, all[of].find('\0', begin) - begin);
    };
    const std::string ranks = describe(static_cast<int>(rank));
    for (std::size_t fact = 0; fact < facts.size(); ++fact) {
      const std::string here = value_at(rank, fact), first = value_at(0, fact);
      if (here == first) continue;
      throw JobError(ranks + " has " + facts[fact].first + " " + here + ", and rank 0 has " +
                         first + "; " + advice,
                     2, "bad_input", !is_first());
    }
  }
}

collectives::MessageExchange World::exchange_of_addresses() {
  return [plane = plane_.get()](const std::string& message, Deadline deadline) {
    return plane->gather("the addresses of a group", message, deadline);
  };
}

void World::connect(bool has_stages, bool has_inner) {
  if (alone() || data_) return;
  const collectives::MessageExchange exchange = exchange_of_addresses();
  try {
    data_ = options_.make_group(options_.place, exchange);
  } catch (const DeviceError& error) {  // this build has no transport
    throw JobError(error.what(), 2, "bad_input", !is_first());
  }
  host_ = options_.make_group(options_.place, exchange);
  plane_->watch(data_);
  plane_->watch(host_);
  if (has_stages) {
    messages_ = options_.make_group(options_.place, exchange);
    plane_->watch(messages_);
  }
  if (!has_inner) return;
  inner_ = options_.make_group(options_.place, exchange);
  plane_->watch(inner_);
}

std::string World::gpu_group_obstacle() const {
  if (!options_.make_gpu_group) return "this program has no NCCL";
  return options_.gpu_group_obstacle();
}

// The plane aborts the group of the host with the root cause, and the group of the GPUs looks at
// that one while it waits.
std::unique_ptr<collectives::Communicator> World::connect_gpus(const std::string& gpu,
                                                               device::Device& device,
                                                               device::Stream& stream) {
  collectives::NcclOptions options;
  options.place = options_.place;
  options.exchange = exchange_of_addresses();
  options.gpu = gpu;
  options.device = &device;
  options.stream = &stream;
  options.poll = [data = data_] { data->check(); };
  return options_.make_gpu_group(options);
}

// Few steps end with a fault, so its text travels only then.
World::StopVote World::vote_on_stop(const StopVote& own) {
  const std::array<std::int32_t, 2> vote{own.signal, own.fault.empty() ? 0 : 1};
  std::vector<std::int32_t> votes(2 * static_cast<std::size_t>(size()));
  try {
    host_->all_gather(vote.data(), votes.data(), vote.size(), DType::kI32);
  } catch (const collectives::CommunicationError& error) {
    throw error.in("the vote on a stop");
  }
  StopVote agreed;
  bool has_faults = false;
  for (std::size_t rank = 0; rank < votes.size() / 2; ++rank) {
    if (agreed.signal == 0) agreed.signal = votes[2 * rank];
    has_faults = has_faults || votes[2 * rank + 1] != 0;
  }
  if (stop_signal_ == 0) stop_signal_ = agreed.signal;
  if (!has_faults) return agreed;
  const std::vector<std::string> faults = gather("the faults of files", own.fault);
  for (std::size_t rank = 0; rank < faults.size() && agreed.fault.empty(); ++rank) {
    if (!faults[rank].empty())
      agreed.fault = describe(static_cast<int>(rank)) + ": " + faults[rank];
  }
  return agreed;
}

JobError World::explain(const std::exception& error, const std::string& when) {
  std::string own = error.what();
  const auto* known = dynamic_cast<const Error*>(&error);
  const std::string code(known != nullptr ? known->code() : "fault");
  const std::optional<std::string> operation = operation_of(error);
  // A fault on which the ranks have agreed names its rank already.
  const auto reported_by = [&](int rank) {
    for (int named = 0; named < size(); ++named) {
      if (own.starts_with(describe(named) + ": ")) return own;
    }
    return describe(rank) + ": " + own;
  };
  // A broken call follows from some rank's fault, which its own rank or rank 0 reports.
  const collectives::FirstCause cause =
      operation ? plane_->find_cause(own) : plane_->abort(reported_by(rank()));
  if (cause.rank == rank()) return {own, 3, code, false};
  // A fault that every rank has, such as gradients that are not finite, is printed once.
  const bool is_reported = cause.text == reported_by(cause.rank);
  std::string text = cause.text;
  if (operation) text += "; " + describe(rank()) + " waited for it in " + *operation + when;
  return {text, 3, code, is_reported};
}

}  // namespace sluice::train
