// The work of a step as bounds count it: seconds of each lane in each phase.
//
// An amount is a number, or a sum over the columns of a linear program. It starts at zero, can be
// added, and can be multiplied by a number.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "base/memory_kinds.hpp"
#include "engine/planner/price/cost_model.hpp"

namespace sluice::planner {

template <typename Amount>
struct PhaseWork {
  Amount compute{}, upload{}, download{}, optimizer{}, read{}, write{}, comm{};

  static constexpr std::array<Amount PhaseWork::*, 7> lanes() {
    return {&PhaseWork::compute, &PhaseWork::upload, &PhaseWork::download, &PhaseWork::optimizer,
            &PhaseWork::read,    &PhaseWork::write,  &PhaseWork::comm};
  }
  PhaseWork& operator+=(const PhaseWork& other) {
    for (Amount PhaseWork::*const lane : lanes()) this->*lane += other.*lane;
    return *this;
  }

  // Copies bytes to the device, some of which come from storage.
  void fetch(const Amount& bytes, const Amount& stored, const StepRates& rates) {
    upload += bytes * rates.copy_s;
    read += stored * rates.storage_read_s;
  }
  // Seconds times cores. The lanes of storage are left out, since they use a tenth of a core.
  Amount core_seconds(const schedule::SimulationModel& machine) const {
    Amount all{};
    for (const auto& [lane, of] : {std::pair(&PhaseWork::compute, schedule::Lane::kCompute),
                                   std::pair(&PhaseWork::upload, schedule::Lane::kH2D),
                                   std::pair(&PhaseWork::download, schedule::Lane::kD2H),
                                   std::pair(&PhaseWork::optimizer, schedule::Lane::kOptimizer),
                                   std::pair(&PhaseWork::comm, schedule::Lane::kComm)}) {
      all += this->*lane * machine.cores_used[static_cast<std::size_t>(of)];
    }
    return all;
  }
};

enum Phase : std::size_t { kForwardPhase, kBackwardPhase, kUpdatePhase, kPhaseCount };

template <typename Amount>
struct StepWork : std::array<PhaseWork<Amount>, kPhaseCount> {
  // Bytes that forward makes and backward reads, and that wait in the tier between the two.
  void keep(const Amount& bytes, Tier tier, const StepRates& rates) {
    if (tier == Tier::kDevice) return;
    const Amount stored = bytes * (tier == Tier::kStorage ? 1 : 0);
    (*this)[kForwardPhase].download += bytes * rates.copy_s;
    (*this)[kForwardPhase].write += stored * rates.storage_write_s;
    (*this)[kBackwardPhase].fetch(bytes, stored, rates);
  }
};

}  // namespace sluice::planner
