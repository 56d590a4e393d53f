// The search for the fastest plan of a configuration.
//
// Whether the configuration fits is settled first, by the candidate groups alone (feasibility.hpp).
// Then every shape of a plan gets its least possible time and the places that would reach it
// (relaxation.hpp). Shapes are tried from the fastest on: their places are rounded to whole units,
// compiled coarsely, corrected by the memory that the schedule turns out to need, and simulated. A
// shape that cannot beat the best plan so far is not tried. Single changes then improve the best
// plan, and the few fastest are compiled exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/bound/activation_choice.hpp"
#include "engine/planner/bound/relaxation.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/spill_choice.hpp"
#include "engine/planner/search/improve.hpp"
#include "engine/planner/search/shortlist.hpp"
#include "engine/planner/search/tried.hpp"
#include "engine/planner/trial/feasibility.hpp"
#include "engine/planner/trial/refusal.hpp"
#include "engine/planner/trial/trials.hpp"

namespace sluice::planner {

class Search {
 public:
  // All arguments but the groups must outlive it.
  Search(const config::Config& config, const schedule::StepModel& model, const TierBytes& budgets,
         CostModel& costs, Trials& trials, std::vector<CandidateGroup> groups);

  // Whether any group has a candidate that fits.
  bool fits() { return feasibility_.fits(); }
  // Precondition: fits() returned false.
  Refusal refusal() { return feasibility_.refusal(); }

  // The bound of the fastest shape; 0: no shape has room. Needs no trial.
  double least_step_s() const {
    const std::vector<Shape> all = shapes();
    return all.empty() ? 0 : all.front().least.seconds;
  }

  // The fastest plan found, compiled and linked. Its peaks, given as budgets, fit again, unless its step
  // is long and spills nothing. Call once, and only if fits() returned true.
  Compiled fastest();
  // No plan takes less, of the shapes that the configuration leaves open. Valid after fastest().
  double bound_s() const { return bound_s_; }
  const std::vector<Tried>& tried() const { return tried_; }

 private:
  using Places = config::Config::Places;
  // Leaves more room to state. With a shared device windows and arena are one memory, nothing is
  // fetched ahead, and staging is small.
  enum class Thrift : std::uint8_t { kNone, kOneAhead, kNothingAhead, kSharedDevice };
  struct Shape {
    PlanShape shape;
    Places places;  // of the kinds of state that are not free
    Relaxed least;
    std::string policy;  // of recomputation
    Thrift thrift = Thrift::kNone;
    std::string text() const;
  };

  // A plan that the search goes on from.
  struct Start {
    Shape shape;
    Shortlist::Found plan;
  };
  static constexpr double kNearStart = 1.25;  // times the fastest plan

  std::string policy_of(const PlanShape& shape) const;
  std::vector<Shape> shapes() const;
  std::vector<Shape> narrowed(const Start& start) const;
  std::vector<Thrift> thrifts() const;
  void add_with_places(const Shape& shape, const Places& places, std::vector<Shape>& list) const;
  static void sort_by_bound(std::vector<Shape>& shapes);
  schedule::StepOptions base_options(const Shape& shape) const;
  schedule::StepOptions placed(const Shape& shape, const Relaxed& places,
                               const TierBytes& extra) const;
  schedule::StepOptions frugal_options(const Shape& shape) const;
  std::optional<Shortlist::Found> spill_least(const schedule::StepOptions& options);
  std::optional<Shortlist::Found> try_shape(const Shape& shape);
  void try_or_spill(const Shape& shape, std::vector<Start>& starts);
  void try_spills(const Shape& shape, std::vector<Start>& starts);
  std::vector<Start> try_shapes(const std::vector<Shape>& shapes);
  Start narrow(Start start);
  void search(const std::vector<Shape>& shapes);
  void consider_groups();
  std::optional<Shortlist::Found> try_carried();
  void explore();
  Compiled confirm();
  Compiled conclude();
  Compiled fastest_of_tried(Compiled best);
  Compiled settled(Compiled best);
  // Raises the need of a plan until its peaks, given as budgets, fit again.
  void state_need(Compiled& plan);

  const config::Config& config_;
  const schedule::StepModel& model_;
  const TierBytes& budgets_;
  Trials& trials_;
  Relaxation relaxation_;
  ActivationChoice activations_;
  Feasibility feasibility_;
  Shortlist found_;
  Improver improver_;
  double bound_s_ = 0;
  std::vector<Tried> tried_;
};

}  // namespace sluice::planner
