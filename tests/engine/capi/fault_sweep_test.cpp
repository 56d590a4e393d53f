// Every operation on storage fails once, and from some moment on for ever, in each way, under a
// pager and under a session that commits. A call that fails says so by its status. Bytes that a
// call hands out are the right ones. Nothing stays behind, and the process goes on. The last commit
// is whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/capi/handles.hpp"
#include "offload/storage_engine.hpp"
#include "sluice/sluice.h"
#include "tests/support/temp_directory.hpp"

namespace sluice {
namespace {

using offload::FaultPlan;
using offload::StorageFault;

constexpr std::array<StorageFault, 10> kFaults{
    StorageFault::kEio,           StorageFault::kEnospc,          StorageFault::kShortTransfer,
    StorageFault::kFlippedRead,   StorageFault::kFlippedWrite,    StorageFault::kLostWrite,
    StorageFault::kCallEagain,    StorageFault::kCallShortByHalf, StorageFault::kCallShortByOne,
    StorageFault::kCallShortBy511};

// An engine whose storage fails by plan, and the operations that its last storage engine has seen.
class FaultyHost {
 public:
  FaultyHost(const std::string& folder, FaultPlan plan) {
    host::EngineOptions options;
    options.device_bytes = 8 << 20;
    options.pinned_bytes = 16 << 20;
    options.storage_bytes = 16 << 20;
    options.storage_paths = {folder};
    options.storage_engine = "posix";
    options.threads = 1;
    options.deadline_s = 30;
    options.wrap_storage = [this, plan](std::unique_ptr<offload::StorageEngine> inner) {
      auto faulty = offload::make_faulty_engine(std::move(inner), plan);
      watched_ = faulty.get();
      return faulty;
    };
    handle_ =
        std::make_unique<sluice_engine>(sluice_engine{std::make_shared<host::HostEngine>(options)});
  }

  sluice_engine* handle() { return handle_.get(); }
  // While a pager or session lives.
  std::uint64_t operations(StorageFault fault) const {
    return offload::is_fault_of_calls(fault) ? offload::faulty_engine_calls(*watched_)
                                             : offload::faulty_engine_operations(*watched_);
  }
  std::uint64_t live_bytes() const {
    std::uint64_t bytes = 0;
    for (const Tier tier : kTiers) bytes += handle_->inner->ledger().totals(tier).live_bytes;
    return bytes;
  }

 private:
  const offload::StorageEngine* watched_ = nullptr;
  std::unique_ptr<sluice_engine> handle_;
};

// The statuses of a trial's calls.
class Statuses {
 public:
  // Returns whether the call was served.
  bool operator()(sluice_status status) {
    switch (status) {
      case SLUICE_OK:
        return true;
      case SLUICE_E_IO:
      case SLUICE_E_INTEGRITY:
      case SLUICE_E_POISONED:
        failed_ = true;
        break;
      default: {
        sluice_error_info info = SLUICE_ERROR_INFO_INIT;
        EXPECT_EQ(sluice_error(&info), SLUICE_OK);
        ADD_FAILURE() << sluice_status_name(status) << ": " << info.message;
      }
    }
    return false;
  }
  bool failed() const { return failed_; }

 private:
  bool failed_ = false;
};

struct Outcome {
  bool failed = false;
  std::map<bool, std::uint64_t> operations;  // of requests; of calls (true)
};

void note_operations(const FaultyHost& host, Outcome& outcome) {
  outcome.operations[false] = host.operations(StorageFault::kEio);
  outcome.operations[true] = host.operations(StorageFault::kCallEagain);
}

// Three units with weights and state on storage; two passes, updates, a read and a write.
class PagerTrial {
 public:
  static constexpr std::uint32_t kUnits = 3;
  static constexpr std::uint64_t kWeightBytes = 40000, kStateBytes = 9000;

  Outcome run(const std::string& folder, FaultPlan plan) {
    FaultyHost host(folder, plan);
    Outcome outcome;
    sluice_pager* pager = nullptr;
    sluice_pager_options options = SLUICE_PAGER_OPTIONS_INIT;
    options.weights = options.state = SLUICE_STATE_STORAGE;
    EXPECT_EQ(sluice_pager_create(host.handle(), &options, &pager), SLUICE_OK);
    add_units(pager);
    if (check_(sluice_pager_seal(pager))) {
      use(pager);
      note_operations(host, outcome);
    }
    sluice_pager_destroy(pager);
    EXPECT_EQ(host.live_bytes(), 0u);
    outcome.failed = check_.failed();
    return outcome;
  }

 private:
  void add_units(sluice_pager* pager) {
    for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
      std::vector<unsigned char>& bytes = expected_[unit];
      bytes.resize(kWeightBytes + kStateBytes);
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<unsigned char>(i * 7 + (i >> 9) + unit * 50);
      }
      sluice_unit number = {0};
      EXPECT_EQ(sluice_pager_add_unit(pager, "unit", &number), SLUICE_OK);
      EXPECT_EQ(sluice_pager_add(pager, number, SLUICE_PART_WEIGHT, kWeightBytes, bytes.data(),
                                 &weights_[unit]),
                SLUICE_OK);
      EXPECT_EQ(sluice_pager_add(pager, number, SLUICE_PART_STATE, kStateBytes,
                                 bytes.data() + kWeightBytes, &states_[unit]),
                SLUICE_OK);
    }
  }

  void pass(sluice_pager* pager) {
    if (!check_(sluice_pager_begin_pass(pager))) return;
    for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
      void* window = nullptr;
      if (!check_(sluice_pager_acquire(pager, sluice_unit{unit}, nullptr))) continue;
      EXPECT_EQ(sluice_pager_window(pager, weights_[unit], &window), SLUICE_OK);
      EXPECT_EQ(std::memcmp(window, expected_[unit].data(), kWeightBytes), 0);
      EXPECT_EQ(sluice_pager_release(pager, sluice_unit{unit}, nullptr), SLUICE_OK);
    }
  }

  void update(sluice_pager* pager) {
    for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
      void *weight = nullptr, *state = nullptr;
      if (!check_(sluice_pager_stage(pager, sluice_unit{unit},
                                     unit + 1 < kUnits ? sluice_unit{unit + 1} : SLUICE_NO_UNIT))) {
        continue;
      }
      EXPECT_EQ(sluice_pager_staged(pager, weights_[unit], &weight), SLUICE_OK);
      EXPECT_EQ(sluice_pager_staged(pager, states_[unit], &state), SLUICE_OK);
      EXPECT_EQ(std::memcmp(weight, expected_[unit].data(), kWeightBytes), 0);
      EXPECT_EQ(std::memcmp(state, expected_[unit].data() + kWeightBytes, kStateBytes), 0);
      static_cast<unsigned char*>(weight)[unit * 100] = expected_[unit][unit * 100] = 77;
      static_cast<unsigned char*>(state)[5] = expected_[unit][kWeightBytes + 5] = 78;
      check_(sluice_pager_unstage(pager, sluice_unit{unit}));
    }
    check_(sluice_pager_settle(pager));
  }

  void use(sluice_pager* pager) {
    unsigned char byte = 0;
    pass(pager);
    update(pager);
    pass(pager);
    if (check_(sluice_pager_read(pager, weights_[1], 333, &byte, 1))) {
      EXPECT_EQ(byte, expected_[1][333]);
    }
    byte = 79;
    if (check_(sluice_pager_write(pager, weights_[2], 444, &byte, 1))) expected_[2][444] = byte;
    pass(pager);
    update(pager);
    pass(pager);
  }

  std::array<std::vector<unsigned char>, kUnits> expected_;
  std::array<sluice_paged, kUnits> weights_{}, states_{};
  Statuses check_;
};

// A session with state on storage: an update, a commit, an update, a commit, an update.
class SessionTrial {
 public:
  static constexpr std::int64_t kElems = 9000;
  using Floats = std::vector<float>;
  struct State {
    Floats weights, moments;
    bool operator==(const State&) const = default;
  };

  Outcome run(const std::string& folder, FaultPlan plan) {
    FaultyHost host(folder, plan);
    Outcome outcome;
    sluice_session* session = make(host.handle(), folder);
    if (check_(sluice_session_seal(session))) {
      update(session, 0);
      if (check_(sluice_session_commit(session))) last_commit_ = 1;
      update(session, 1);
      if (check_(sluice_session_commit(session))) last_commit_ = 2;
      update(session, 2);
      State state;
      if (read(session, state)) states_[updates(session)] = std::move(state);
      note_operations(host, outcome);
    }
    sluice_session_destroy(session);
    EXPECT_EQ(host.live_bytes(), 0u);
    outcome.failed = check_.failed();
    return outcome;
  }

  // The healthy trial's state after each update.
  std::map<std::uint64_t, State> states() const { return states_; }
  // The last commit that reported success, or a later one, is whole in another session. Writes that
  // were lost or flipped are found, and then the commit before counts, or none.
  void check_recovery(const std::string& folder, const std::map<std::uint64_t, State>& right,
                      bool data_may_be_wrong) {
    FaultyHost host(folder, {});
    sluice_session* session = make(host.handle(), {});
    ASSERT_EQ(sluice_session_seal(session), SLUICE_OK);
    if (sluice_session_load(session, folder.c_str()) == SLUICE_OK) {
      State state;
      ASSERT_TRUE(read(session, state));
      const std::uint64_t found = updates(session);
      EXPECT_TRUE(data_may_be_wrong || found >= last_commit_);
      EXPECT_TRUE(state == right.at(found));
    } else {
      EXPECT_TRUE(last_commit_ == 0 || data_may_be_wrong);
    }
    sluice_session_destroy(session);
  }

 private:
  static sluice_session* make(sluice_engine* engine, const std::string& commit_path) {
    sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
    sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
    sluice_param_options param = SLUICE_PARAM_OPTIONS_INIT;
    sluice_session* session = nullptr;
    sluice_param number = {0};
    options.state = SLUICE_STATE_STORAGE;
    if (!commit_path.empty()) options.commit_path = commit_path.c_str();
    EXPECT_EQ(sluice_session_create(engine, &options, &session), SLUICE_OK);
    EXPECT_EQ(sluice_session_add_group(session, &group, &param.group), SLUICE_OK);
    EXPECT_EQ(sluice_session_add_unit(session, "unit", &param.unit), SLUICE_OK);
    param.name = "p";
    param.ndim = 1;
    param.shape = &kElems;
    EXPECT_EQ(sluice_session_add_param(session, &param, &number), SLUICE_OK);
    return session;
  }

  static std::uint64_t updates(sluice_session* session) {
    sluice_session_stats stats = SLUICE_SESSION_STATS_INIT;
    EXPECT_EQ(sluice_session_get_stats(session, &stats), SLUICE_OK);
    return stats.updates;
  }

  void update(sluice_session* session, int step) {
    Floats gradient(kElems);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>(i % 13) - static_cast<float>(step) * 3.0F;
    }
    sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
    sluice_tensor tensor = SLUICE_TENSOR_INIT;
    tensor.ndim = 1;
    tensor.shape = &kElems;
    tensor.data = gradient.data();
    if (!check_(sluice_session_give_grad(session, sluice_param{0}, &tensor))) return;
    if (!check_(sluice_session_update(session, &info))) return;
    State state;
    if (step < 2 && read(session, state)) states_[updates(session)] = std::move(state);
  }

  bool read(sluice_session* session, State& state) {
    constexpr std::uint64_t kBytes = kElems * sizeof(float);
    state.weights.resize(kElems);
    state.moments.resize(kElems);
    return check_(sluice_session_read(session, sluice_param{0}, SLUICE_KIND_WEIGHT, 0, kElems,
                                      state.weights.data(), kBytes)) &&
           check_(sluice_session_read(session, sluice_param{0}, SLUICE_KIND_MOMENT1, 0, kElems,
                                      state.moments.data(), kBytes));
  }

  std::uint64_t last_commit_ = 0;
  std::map<std::uint64_t, State> states_;
  Statuses check_;
};

std::string describe(const FaultPlan& plan) {
  return "fault " + std::to_string(static_cast<int>(plan.fault)) + " at operation " +
         std::to_string(plan.at_operation) + (plan.forever ? " for ever" : "");
}

// Faults that no retry passes: some call must fail.
bool must_fail(const FaultPlan& plan) {
  return plan.fault == StorageFault::kEio || plan.fault == StorageFault::kEnospc;
}

template <typename Check>
void sweep(Outcome healthy, const Check& check) {
  ASSERT_FALSE(healthy.failed);
  for (const StorageFault fault : kFaults) {
    const std::uint64_t operations = healthy.operations[offload::is_fault_of_calls(fault)];
    ASSERT_GT(operations, 20u);
    // All of them take two minutes; the long suite has them.
    const std::uint64_t stride = std::getenv("SLUICE_WHOLE_SWEEPS") == nullptr ? 6 : 1;
    for (std::uint64_t at = static_cast<std::uint64_t>(fault) % stride; at < operations;
         at += stride) {
      for (const bool forever : {false, true}) {
        const FaultPlan plan{fault, at, forever};
        SCOPED_TRACE(describe(plan));
        check(plan);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(CapiFaults, EveryFaultUnderAPagerIsAStatus) {
  const testing::TempDirectory folder;
  const Outcome healthy = PagerTrial().run(folder.path(), {});
  sweep(healthy, [&](const FaultPlan& plan) {
    const Outcome outcome = PagerTrial().run(folder.path(), plan);
    // Fetches ahead make the number of operations vary a little, so the last ones may not come.
    const std::uint64_t sure = healthy.operations.at(false) * 3 / 4;
    EXPECT_TRUE(outcome.failed || !must_fail(plan) || plan.at_operation >= sure);
  });
}

TEST(CapiFaults, EveryFaultUnderASessionLeavesTheLastCommit) {
  const testing::TempDirectory root;
  int number = 0;
  const auto fresh = [&] {
    const std::filesystem::path folder =
        std::filesystem::path(root.path()) / std::to_string(number++);
    std::filesystem::create_directory(folder);
    return folder.string();
  };
  SessionTrial right;
  const Outcome healthy = right.run(fresh(), {});
  sweep(healthy, [&](const FaultPlan& plan) {
    const std::string folder = fresh();
    SessionTrial trial;
    const Outcome outcome = trial.run(folder, plan);
    EXPECT_TRUE(outcome.failed || !must_fail(plan));
    const bool wrong_data =
        plan.fault == StorageFault::kFlippedWrite || plan.fault == StorageFault::kLostWrite;
    trial.check_recovery(folder, right.states(), wrong_data);
    std::filesystem::remove_all(folder);
  });
}

}  // namespace
}  // namespace sluice
