#include "engine/host/session_space.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace sluice::host {
namespace {

// The limit of one tensor: its layout is made before the budgets are looked at.
constexpr std::uint64_t kMostElems = std::uint64_t{1} << 38;

std::uint64_t elems_of(const ParameterOptions& options) {
  std::uint64_t elems = 1;
  for (const std::int64_t dimension : options.shape) {
    if (dimension <= 0) {
      throw InputError("the parameter '" + shown(options.name) + "' has a dimension of " +
                       std::to_string(dimension) + "; every dimension is 1 or more");
    }
    if (static_cast<std::uint64_t>(dimension) > kMostElems / elems) {
      throw InputError("the parameter '" + shown(options.name) + "' has more than 2^38 elements");
    }
    elems *= static_cast<std::uint64_t>(dimension);
  }
  return elems;
}

std::string number_text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

void check_number(double value, const char* name, double least, double below) {
  if (std::isfinite(value) && value >= least && value < below) return;
  throw InputError(std::string("the group's ") + name + " is " + number_text(value) +
                   "; it is at least " + number_text(least) + " and below " + number_text(below));
}

void check_group(const GroupOptions& options) {
  constexpr double kAny = 1e30;
  check_number(options.lr, "lr", 0, kAny);
  check_number(options.weight_decay, "weight_decay", 0, kAny);
  check_number(options.rule.beta1, "beta1", 0, 1);
  check_number(options.rule.beta2, "beta2", 0, 1);
  check_number(options.rule.epsilon, "eps", 0, kAny);
  check_number(options.rule.momentum, "momentum", 0, kAny);
  if (options.rule.nesterov &&
      (options.rule.rule != kernels::OptimizerRule::kSgd || options.rule.momentum == 0)) {
    throw InputError("the group's nesterov is set, which only SGD with a momentum has");
  }
}

// Files name the state of a tensor "moment1.NAME"; a tensor of that name would be taken for it.
void check_name(const std::string& name) {
  if (name.empty()) throw InputError("a parameter has no name");
  if (name == "__metadata__") {
    throw InputError(
        "a parameter is called '__metadata__', which safetensors files keep for notes");
  }
  constexpr std::array<std::string_view, 6> kKinds{
      "master.", "remainder.", "moment1.", "moment1_scale.", "moment2.", "moment2_scale."};
  for (const std::string_view kind : kKinds) {
    if (name.starts_with(kind)) {
      throw InputError("the parameter's name '" + shown(name) + "' begins with '" +
                       std::string(kind) + "', which marks optimizer state in files");
    }
  }
}

}  // namespace

std::uint32_t SessionSpace::add_group(const GroupOptions& options) {
  check_group(options);
  groups_.push_back(options);
  return static_cast<std::uint32_t>(groups_.size() - 1);
}

void SessionSpace::set_group(std::uint32_t group, const GroupOptions& options) {
  if (group >= groups_.size()) {
    throw InputError("there is no group " + std::to_string(group));
  }
  check_group(options);
  const kernels::OptimizerOptions& now = groups_[group].rule;
  // SGD has a moment with momentum and none without.
  const auto extent = [](const kernels::OptimizerOptions& rule) {
    return kernels::state_layout(rule, StateKind::kMoment1).extent;
  };
  if (now.rule != options.rule.rule || now.moments != options.rule.moments ||
      now.split_master != options.rule.split_master ||
      now.caller_moments != options.rule.caller_moments || extent(now) != extent(options.rule)) {
    throw InputError("a group's rule and formats stay as they are; make a session with others");
  }
  groups_[group] = options;
}

std::uint32_t SessionSpace::add_unit(const std::string& name) {
  program_units_.push_back(name);
  return static_cast<std::uint32_t>(program_units_.size() - 1);
}

std::uint32_t SessionSpace::add_parameter(const ParameterOptions& options) {
  check_name(options.name);
  SessionParameter parameter{options, elems_of(options)};
  if (options.unit >= program_units_.size()) {
    throw InputError("the parameter '" + shown(options.name) + "' is of unit " +
                     std::to_string(options.unit) + ", and there is no such unit");
  }
  if (options.group && *options.group >= groups_.size()) {
    throw InputError("the parameter '" + shown(options.name) + "' is of group " +
                     std::to_string(*options.group) + ", and there is no such group");
  }
  if (options.group && groups_[*options.group].rule.split_master && options.dtype == DType::kF16) {
    throw InputError("the parameter '" + shown(options.name) +
                     "' is of fp16, and its group splits the master, which needs bf16");
  }
  if (!names_.insert(options.name).second) {
    throw InputError("two parameters are called '" + shown(options.name) + "'");
  }
  // A scalar is a vector of one element here.
  if (parameter.options.shape.empty()) parameter.options.shape = {1};
  parameters_.push_back(std::move(parameter));
  return static_cast<std::uint32_t>(parameters_.size() - 1);
}

std::vector<SessionSpace::Part> SessionSpace::parts() const {
  std::vector<Part> parts;
  for (std::uint32_t unit = 0; unit < program_units_.size(); ++unit) {
    const auto first = static_cast<std::ptrdiff_t>(parts.size());
    for (std::uint32_t number = 0; number < parameters_.size(); ++number) {
      const ParameterOptions& options = parameters_[number].options;
      if (options.unit != unit || !options.group) continue;
      auto part = std::find_if(parts.begin() + first, parts.end(), [&](const Part& candidate) {
        return candidate.group == *options.group && candidate.dtype == options.dtype;
      });
      if (part == parts.end()) {
        part = parts.insert(parts.end(), {unit, *options.group, options.dtype, {}});
      }
      part->parameters.push_back(number);
    }
  }
  return parts;
}

void SessionSpace::make_units() {
  std::vector<Part> made = parts();
  if (made.empty())
    throw InputError("the session has no parameter with a group: nothing to update");
  layouts_.clear();
  unit_names_.clear();
  space_ = {};
  for (const Part& part : made) {
    std::vector<model::TensorSpec> specs;
    for (const std::uint32_t number : part.parameters) {
      const ParameterOptions& options = parameters_[number].options;
      specs.push_back({.name = options.name, .shape = options.shape});
    }
    layouts_.push_back(std::make_unique<model::UnitLayout>(std::move(specs)));
    for (std::size_t i = 0; i < part.parameters.size(); ++i) {
      SessionParameter& parameter = parameters_[part.parameters[i]];
      parameter.unit = static_cast<std::int32_t>(unit_names_.size());
      parameter.first_elem = layouts_.back()->tensors()[i].first_elem;
    }
    unit_names_.push_back(program_units_[part.unit]);
    space_.add_unit(*layouts_.back());
  }
  made_ = std::move(made);
}

const SessionParameter& SessionSpace::parameter(std::uint32_t number) const {
  if (number >= parameters_.size()) {
    throw InputError("there is no parameter " + std::to_string(number));
  }
  return parameters_[number];
}

bool SessionSpace::has_caller_groups() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const GroupOptions& group) {
    return group.rule.rule == kernels::OptimizerRule::kCaller;
  });
}

// The learning rate is the segments' scale, and an update's own lr is 1: the product is exact.
std::vector<model::ParameterTable::UnitRule> SessionSpace::rules() const {
  std::vector<model::ParameterTable::UnitRule> rules;
  for (const Part& part : made_) {
    const GroupOptions& group = groups_[part.group];
    model::ParameterTable::UnitRule rule{group.rule, static_cast<float>(group.lr),
                                         static_cast<float>(group.weight_decay)};
    rule.options.weight = part.dtype;
    if (part.dtype != DType::kBF16) rule.options.split_master = false;
    rules.push_back(rule);
  }
  return rules;
}

}  // namespace sluice::host
