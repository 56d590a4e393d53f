// The ranks of a training job, as one of them sees it: the control plane, and the groups that its
// session uses.
//
// Before the first step the ranks agree. agree() runs a part of the start on every rank; if it
// fails on one of them, all throw the same error, and one rank prints it. From then on a fault ends
// the job. explain() makes a sentence of it that names the rank at fault and the operation that
// this rank could not finish.
//
// A process without other ranks is alone in its world: nothing is exchanged, and errors pass as
// they are. One thread uses a World.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "collectives/communicator.hpp"
#include "collectives/control/control_plane.hpp"
#include "collectives/nccl/nccl_communicator.hpp"
#include "collectives/rendezvous.hpp"

namespace sluice::train {

struct WorldOptions {
  collectives::RendezvousPlace place;
  // Makes a group of all ranks, which find each other through the exchange.
  std::function<std::unique_ptr<collectives::Communicator>(
      const collectives::RendezvousPlace& place, const collectives::MessageExchange& exchange)>
      make_group;
  // For the memory of GPUs (collectives/nccl): why this process can make no such group,
  // empty if it can, and the group. Null: there is no transport for GPUs.
  std::function<std::string()> gpu_group_obstacle;
  std::function<std::unique_ptr<collectives::Communicator>(const collectives::NcclOptions& options)>
      make_gpu_group;
  collectives::ControlOptions control;
};

// An error that all ranks of a job know.
class JobError : public Error {
 public:
  JobError(const std::string& what, int status, std::string code, bool is_already_reported)
      : Error(what),
        status_(status),
        code_(std::move(code)),
        already_reported_(is_already_reported) {}
  int exit_status() const noexcept override { return status_; }
  std::string_view code() const noexcept override { return code_; }
  // Another rank prints it.
  bool is_already_reported() const noexcept { return already_reported_; }

 private:
  int status_;
  std::string code_;
  bool already_reported_;
};

class World {
 public:
  // Alone.
  World() = default;
  // Meets the other ranks. Throws as ControlPlane does; a disagreement is a JobError.
  explicit World(const WorldOptions& options);

  bool alone() const { return plane_ == nullptr; }
  int rank() const { return options_.place.rank; }
  int size() const { return options_.place.size; }
  bool is_first() const { return rank() == 0; }
  int local_rank() const { return options_.place.local_rank; }
  int ranks_on_node() const { return options_.place.local_size; }
  // "rank 1 of 4"
  std::string describe(int rank) const;

  // Returns every rank's message. All ranks call it with the same name.
  std::vector<std::string> gather(const std::string& name, const std::string& message);
  // Returns the first rank's message; the others' are not read.
  std::string share(const std::string& name, const std::string& message);
  // Runs `body` on each rank. Throws JobError on all ranks if it threw on one, and run::NoState if
  // it threw that. body may not gather.
  void agree(const std::string& name, const std::function<void()>& body);
  // Facts that must be equal on all ranks, with a name for a sentence ("the program", "train.lr
  // ="). Throws JobError that names the first fact that differs and the rank. advice: the right
  // way, for the sentence.
  using Facts = std::vector<std::pair<std::string, std::string>>;
  void check_equal(const std::string& name, const Facts& facts, const std::string& advice);

  // Makes the groups, the first time. All ranks call it. has_stages: the ranks are those of a
  // pipeline. has_inner: some hold parts of the same units.
  void connect(bool has_stages, bool has_inner);
  // All are null if this rank is alone, `messages` if there are no stages, `inner` if there are no
  // tensor groups.
  collectives::Communicator* data() const { return data_.get(); }
  collectives::Communicator* host() const { return host_.get(); }
  collectives::Communicator* messages() const { return messages_.get(); }
  collectives::Communicator* inner() const { return inner_.get(); }

  // Why this process cannot make a group of GPUs; empty: it can.
  std::string gpu_group_obstacle() const;
  // Makes a group of the ranks' GPUs, on a stream of `device`. gpu: its PCI address. All ranks call
  // it after connect(). It must not outlive the World.
  std::unique_ptr<collectives::Communicator> connect_gpus(const std::string& gpu,
                                                          device::Device& device,
                                                          device::Stream& stream);

  // A reason to stop after the step: a signal (0: none), and a fault of a rank's files.
  struct StopVote {
    int signal = 0;
    std::string fault;
  };
  // Returns those of the first rank that has one. All ranks call it, with their own.
  StopVote vote_on_stop(const StopVote& own);
  // The signal that the ranks have agreed to stop for; 0: none.
  int stop_signal() const { return stop_signal_; }

  // The fault that ended the job, for this rank's user: its own error, or the cause that another
  // rank has reported. Tells the other ranks. when: " after step 3", for the sentence.
  JobError explain(const std::exception& error, const std::string& when = {});
  // Returns once all ranks are done, so that none takes another's end for a death.
  void finish() { gather("the end", {}); }

 private:
  collectives::MessageExchange exchange_of_addresses();

  WorldOptions options_;
  // The groups go first: the plane aborts them.
  std::unique_ptr<collectives::ControlPlane> plane_;
  std::shared_ptr<collectives::Communicator> data_, host_, messages_, inner_;
  int stop_signal_ = 0;
};

}  // namespace sluice::train
