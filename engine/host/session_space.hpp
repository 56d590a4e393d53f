// The parameters that a host program names for a session: groups, units, tensors. From these it
// makes the engine's units.
//
// A unit of the engine has one dtype and one rule. So the tensors of a program's unit are sorted by
// dtype and group, in the order in which the program named them. Frozen tensors have neither
// gradient nor optimizer state, and are in no unit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/dtype.hpp"
#include "base/memory_kinds.hpp"
#include "engine/model/parameter_table.hpp"
#include "kernels/optimizer_options.hpp"

namespace sluice::host {

// The settings of an optimizer group.
struct GroupOptions {
  kernels::OptimizerOptions rule;  // without `weight`, which is each tensor's dtype
  double lr = 1e-3;
  double weight_decay = 0;
};

struct ParameterOptions {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::uint32_t unit = 0;
  std::optional<std::uint32_t> group;  // absent: frozen
  const void* data = nullptr;          // initial values, read by seal(); null: zeros
};

struct SessionParameter {
  ParameterOptions options;
  std::uint64_t elems = 0;
  // Its place, known once the units are made; unit -1: frozen.
  std::int32_t unit = -1;
  std::uint64_t first_elem = 0;
};

// One kind of a parameter's state. scales: of 8-bit moments, one fp32 for each 128 elements.
struct KeptState {
  StateKind kind = StateKind::kWeight;
  bool scales = false;
};

class SessionSpace {
 public:
  // All throw InputError, and have changed nothing then.
  std::uint32_t add_group(const GroupOptions& options);
  std::uint32_t add_unit(const std::string& name);
  std::uint32_t add_parameter(const ParameterOptions& options);
  // Changes numbers of a group, not its rule and formats.
  void set_group(std::uint32_t group, const GroupOptions& options);

  // Makes the units of the engine, from the first named to the last. Throws InputError if no
  // parameter has a group.
  void make_units();

  const std::vector<SessionParameter>& parameters() const { return parameters_; }
  const SessionParameter& parameter(std::uint32_t number) const;
  const model::ParameterSpace& space() const { return space_; }
  const std::vector<std::string>& unit_names() const { return unit_names_; }
  // Whether a group's updates are the program's own.
  bool has_caller_groups() const;
  // By unit of the engine, with the groups' present numbers.
  std::vector<model::ParameterTable::UnitRule> rules() const;

 private:
  // Tensors of one program's unit, dtype and group.
  struct Part {
    std::uint32_t unit, group;
    DType dtype;
    std::vector<std::uint32_t> parameters;
  };
  std::vector<Part> parts() const;

  std::vector<GroupOptions> groups_;
  std::vector<std::string> program_units_;
  std::vector<SessionParameter> parameters_;
  std::unordered_set<std::string> names_;  // of parameters
  // Once the units are made.
  std::vector<std::unique_ptr<model::UnitLayout>> layouts_;
  std::vector<Part> made_;
  std::vector<std::string> unit_names_;
  model::ParameterSpace space_;
};

}  // namespace sluice::host
