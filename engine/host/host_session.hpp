// A host program's parameters with their gradients and optimizer state, kept on the tiers and
// updated by the engine: an offloaded optimizer.
//
// Life: groups, units and parameters are added; seal() plans, takes all memory and fills it; then
// the program gives gradients and calls update(), again and again. Weights and gradients lie in
// pinned memory, at addresses that stay until the end: the program computes with the weights where
// they lie, or copies them to its device after each update. The optimizer state lies in pinned
// memory or on storage, and no result depends on that.
//
// A session with a commit_path makes its state durable on demand: the state on storage is the
// checkpoint (session_commits.hpp).
//
// An update or a write that fails halfway poisons the session, because some units have the new
// state and others the old: every later call throws SessionPoisoned. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/host/host_engine.hpp"
#include "engine/host/session_plan.hpp"
#include "engine/host/session_space.hpp"
#include "engine/host/update_exchange.hpp"

namespace sluice::host {

class SealedSession;

// The call does not belong here in the session's life.
class SessionStateError : public Error {
 public:
  using Error::Error;
};
class SessionPoisoned : public Error {
 public:
  using Error::Error;
};
// A gradient is not finite. The update was not made, and the gradients are dropped.
class GradientNotFinite : public Error {
 public:
  using Error::Error;
};

struct UpdateRequest {
  double max_norm = 0;    // clips the norm of all gradients; 0: no clipping
  double grad_scale = 1;  // gradients are multiplied by it
};

class HostSession {
 public:
  // commit_path: the directory of its commits; empty: it makes none.
  HostSession(std::shared_ptr<HostEngine> engine, StatePlace state, std::string commit_path = {});
  ~HostSession();
  HostSession(const HostSession&) = delete;
  HostSession& operator=(const HostSession&) = delete;

  std::uint32_t add_group(const GroupOptions& options);
  std::uint32_t add_unit(const std::string& name);
  std::uint32_t add_parameter(const ParameterOptions& options);
  // Also between updates.
  void set_group(std::uint32_t group, const GroupOptions& options);
  // Throws Refused and InputError, and the session may then be changed and sealed again.
  void seal();

  const SessionParameter& parameter(std::uint32_t number) const { return space_.parameter(number); }
  std::uint32_t parameter_count() const {
    return static_cast<std::uint32_t>(space_.parameters().size());
  }
  // For its life, in pinned memory. kind: kWeight or kGradient.
  std::byte* home(std::uint32_t parameter, StateKind kind);
  // The first gradient of a parameter after an update is copied to its home; later ones are added
  // there, in fp32 and rounded to the gradient's dtype, as autograd does. data: elements of the
  // parameter's dtype; the home itself counts as given.
  void give_gradient(std::uint32_t parameter, const void* data);
  // Updates all parameters. Returns the norm of all gradients, scaled, before clipping. Throws
  // SessionStateError if a parameter has no gradient or the program updates some itself, and
  // GradientNotFinite.
  double update(const UpdateRequest& request);
  // Updates a session with groups of OptimizerRule::kCaller. begin_update() starts it and
  // returns; the program then calls next_part() and updates each part, until there is none: then
  // the update is made. No other call may come in between. Throws as update().
  void begin_update(const UpdateRequest& request);
  std::optional<CallerPart> next_part();
  // The norm of the last update whose clip factor is known.
  double grad_norm() const { return grad_norm_; }

  // Elements [first, first + count) of one kind of a parameter's state, in the format in which it
  // is kept. Writing a weight also sets its master. A gradient that is written as a whole counts as
  // given. A write that fails halfway poisons the session.
  kernels::StateLayout layout(std::uint32_t parameter, KeptState state) const;
  void read(std::uint32_t parameter, KeptState state, std::uint64_t first, std::uint64_t count,
            std::byte* into);
  void write(std::uint32_t parameter, KeptState state, std::uint64_t first, std::uint64_t count,
             const std::byte* from);
  // All weights and state of trainable parameters, and the number of updates, as one safetensors
  // file. load() checks the whole file before it changes anything.
  // A directory is one of commits: the newest that verifies is loaded.
  void save(const std::string& path);
  void set_update_count(std::uint64_t updates);
  void load(const std::string& path);
  // Makes the state durable as it lies. A failure poisons the session; the commit before stays
  // whole.
  void commit();

  struct Statistics {
    std::uint64_t updates = 0;
    std::array<std::uint64_t, kTierCount> planned_bytes{};
    std::uint64_t stored_units = 0;  // with optimizer state on storage
    std::uint64_t units = 0;
    std::uint64_t storage_read_bytes = 0, storage_write_bytes = 0;
    double update_seconds = 0;  // of the last update
  };
  Statistics statistics() const;

 private:
  struct Running;
  SealedSession& sealed() const;
  SealedSession& begin(const UpdateRequest& request);
  double run_update(SealedSession& inner);
  void load_commit(const std::string& directory);
  void conclude();
  void check_open() const;
  const SessionParameter& trainable(std::uint32_t number) const;

  const std::shared_ptr<HostEngine> engine_;
  const StatePlace place_;
  const std::string commit_path_;
  SessionSpace space_;
  std::unique_ptr<SealedSession> sealed_;  // null: not yet
  std::unique_ptr<Running> running_;       // an update of which the program makes parts
  std::vector<bool> given_;                // by parameter: has a gradient
  std::uint64_t updates_ = 0;
  double update_seconds_ = 0;
  double grad_norm_ = 0;
  bool poisoned_ = false;
};

}  // namespace sluice::host
