// Sessions: an offloaded optimizer. Struct options are translated here; host/ does the work.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/capi/call.hpp"
#include "engine/capi/handles.hpp"

namespace sluice::capi {
namespace {

constexpr std::int32_t kMostDimensions = 64;

// Holds a session for one call. A second thread gets SLUICE_E_BUSY.
class Turn {
 public:
  explicit Turn(sluice_session* session) : session_(required(session, "session")) {
    if (session_.busy.exchange(true, std::memory_order_acquire)) {
      throw CallError(SLUICE_E_BUSY, "another thread is in a call on this session");
    }
  }
  ~Turn() { session_.busy.store(false, std::memory_order_release); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  host::HostSession* operator->() { return session_.inner.get(); }
  host::HostSession& operator*() { return *session_.inner; }

 private:
  sluice_session& session_;
};

[[noreturn]] void refuse_number(const char* name, std::int32_t number, const char* wanted) {
  throw InputError(std::string(name) + " is " + std::to_string(number) + "; use " + wanted);
}

DType weight_dtype(std::int32_t number, const char* name) {
  switch (number) {
    case SLUICE_DTYPE_F32:
      return DType::kF32;
    case SLUICE_DTYPE_BF16:
      return DType::kBF16;
    case SLUICE_DTYPE_F16:
      return DType::kF16;
    default:
      refuse_number(name, number, "SLUICE_DTYPE_F32, SLUICE_DTYPE_BF16 or SLUICE_DTYPE_F16");
  }
}

std::int32_t number_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return SLUICE_DTYPE_F32;
    case DType::kBF16:
      return SLUICE_DTYPE_BF16;
    case DType::kF16:
      return SLUICE_DTYPE_F16;
    case DType::kI16:
      return SLUICE_DTYPE_I16;
    case DType::kBlock8:
      return SLUICE_DTYPE_BLOCK8;
    default:
      throw InternalError("the C API has no number for this dtype");
  }
}

host::KeptState kind_of(std::int32_t number) {
  switch (number) {
    case SLUICE_KIND_MOMENT1_SCALE:
      return {StateKind::kMoment1, /*scales=*/true};
    case SLUICE_KIND_MOMENT2_SCALE:
      return {StateKind::kMoment2, /*scales=*/true};
    default:
      if (number < 0 || number >= static_cast<std::int32_t>(kStateKindCount)) {
        refuse_number("kind", number, "a SLUICE_KIND_ number");
      }
      return {static_cast<StateKind>(number), /*scales=*/false};
  }
}

DType moments_of(std::int32_t number) {
  switch (number) {
    case 0:
    case SLUICE_DTYPE_F32:
      return DType::kF32;
    case SLUICE_DTYPE_BF16:
      return DType::kBF16;
    case SLUICE_DTYPE_BLOCK8:
      return DType::kBlock8;
    default:
      refuse_number("options.moments", number,
                    "SLUICE_DTYPE_F32, SLUICE_DTYPE_BF16 or SLUICE_DTYPE_BLOCK8");
  }
}

// The bytes of an element as calls see it: codes of 8 bits have scales of their own.
std::uint64_t elem_bytes_of(DType dtype) {
  return dtype == DType::kBlock8 ? 1 : dtype_bytes(dtype);
}

kernels::OptimizerRule rule_of(std::int32_t number) {
  switch (number) {
    case SLUICE_RULE_ADAMW:
      return kernels::OptimizerRule::kAdamW;
    case SLUICE_RULE_ADAM:
      return kernels::OptimizerRule::kAdam;
    case SLUICE_RULE_SGD:
      return kernels::OptimizerRule::kSgd;
    case SLUICE_RULE_LION:
      return kernels::OptimizerRule::kLion;
    case SLUICE_RULE_CALLER:
      return kernels::OptimizerRule::kCaller;
    default:
      refuse_number("options.rule", number,
                    "SLUICE_RULE_ADAMW, SLUICE_RULE_ADAM, SLUICE_RULE_SGD, SLUICE_RULE_LION or "
                    "SLUICE_RULE_CALLER");
  }
}

bool flag_of(std::int32_t number, const char* name) {
  if (number != 0 && number != 1) refuse_number(name, number, "0 or 1");
  return number == 1;
}

host::GroupOptions group_options(const sluice_group_options& from) {
  host::GroupOptions group;
  group.rule.rule = rule_of(from.rule);
  group.rule.moments = moments_of(from.moments);
  group.rule.split_master = flag_of(from.split_master, "options.split_master");
  group.rule.nesterov = flag_of(from.nesterov, "options.nesterov");
  if (from.caller_moments < 0 || from.caller_moments > 2) {
    refuse_number("options.caller_moments", from.caller_moments, "0 to 2");
  }
  group.rule.caller_moments = from.caller_moments;
  if (group.rule.rule == kernels::OptimizerRule::kCaller && group.rule.split_master) {
    throw InputError("options.split_master is of our own rules; SLUICE_RULE_CALLER has no master");
  }
  if (group.rule.rule == kernels::OptimizerRule::kCaller && group.rule.moments == DType::kBlock8) {
    throw InputError(
        "SLUICE_DTYPE_BLOCK8 moments are of our own rules; SLUICE_RULE_CALLER has plain ones");
  }
  group.rule.beta1 = from.beta1;
  group.rule.beta2 = from.beta2;
  group.rule.epsilon = from.eps;
  group.rule.momentum = from.momentum;
  group.lr = from.lr;
  group.weight_decay = from.weight_decay;
  return group;
}

std::vector<std::int64_t> shape_of(std::int32_t ndim, const std::int64_t* shape, const char* name) {
  if (ndim < 0 || ndim > kMostDimensions) {
    refuse_number((std::string(name) + ".ndim").c_str(), ndim, "0 to 64");
  }
  if (ndim == 0) return {};
  required(shape, (std::string(name) + ".shape").c_str());
  return {shape, shape + ndim};
}

host::ParameterOptions parameter_options(const sluice_param_options& from) {
  host::ParameterOptions parameter;
  parameter.name = required_name(from.name, "options.name");
  parameter.dtype = weight_dtype(from.dtype, "options.dtype");
  parameter.shape = shape_of(from.ndim, from.shape, "options");
  parameter.unit = from.unit.index;
  if (from.group.index != SLUICE_NONE) parameter.group = from.group.index;
  parameter.data = from.data;
  return parameter;
}

void check_gradient(const host::SessionParameter& parameter, const sluice_tensor& grad) {
  std::vector<std::int64_t> shape = shape_of(grad.ndim, grad.shape, "grad");
  if (shape.empty()) shape = {1};
  if (grad.device_type != SLUICE_DEVICE_CPU) {
    refuse_number("grad.device_type", grad.device_type, "SLUICE_DEVICE_CPU");
  }
  if (weight_dtype(grad.dtype, "grad.dtype") != parameter.options.dtype ||
      shape != parameter.options.shape) {
    throw InputError("the gradient has another dtype or shape than its parameter '" +
                     parameter.options.name + "'");
  }
  require_data(grad.data, "grad.data");
  if (reinterpret_cast<std::uintptr_t>(grad.data) % dtype_bytes(parameter.options.dtype) != 0) {
    throw InputError("grad.data is not aligned to its elements");
  }
}

host::UpdateRequest update_request(const sluice_update_info& from) {
  constexpr double kMost = 1e30;
  if (!(from.max_norm >= 0) || from.max_norm > kMost) {
    throw InputError("info.max_norm is not between 0 and 1e30");
  }
  if (!(from.grad_scale >= 0) || from.grad_scale > kMost) {
    throw InputError("info.grad_scale is not between 0 and 1e30");
  }
  return {from.max_norm, from.grad_scale > 0 ? from.grad_scale : 1};
}

void write_home(host::HostSession& session, sluice_param param, StateKind kind,
                sluice_tensor* out) {
  const host::SessionParameter& parameter = session.parameter(param.index);
  sluice_tensor tensor = SLUICE_TENSOR_INIT;
  tensor.dtype = number_of(parameter.options.dtype);
  tensor.ndim = static_cast<std::int32_t>(parameter.options.shape.size());
  tensor.shape = parameter.options.shape.data();
  tensor.data = session.home(param.index, kind);
  write_struct(out, tensor, "out");
}

// The bytes of `count` elements, which the caller states too.
void check_bytes(const host::HostSession& session, sluice_param param, host::KeptState kind,
                 std::uint64_t count, std::uint64_t bytes) {
  const std::uint64_t elem_bytes = elem_bytes_of(session.layout(param.index, kind).dtype);
  if (count <= UINT64_MAX / elem_bytes && bytes == count * elem_bytes) return;
  throw InputError("bytes is " + std::to_string(bytes) + ", and " + std::to_string(count) +
                   " elements of this kind have " + std::to_string(elem_bytes) + " bytes each");
}

}  // namespace
}  // namespace sluice::capi

using sluice::capi::required;
using sluice::capi::run_call;
using sluice::capi::Turn;

sluice_status sluice_session_create(sluice_engine* engine, const sluice_session_options* options,
                                    sluice_session** out) {
  return run_call("sluice_session_create", [&] {
    required(engine, "engine");
    required(out, "out");
    const sluice_session_options wanted =
        sluice::capi::read_or_default(options, SLUICE_SESSION_OPTIONS_INIT, "options");
    if (wanted.state < SLUICE_STATE_AUTO || wanted.state > SLUICE_STATE_STORAGE) {
      sluice::capi::refuse_number("options.state", wanted.state, "a SLUICE_STATE_ number");
    }
    auto session = std::make_unique<sluice_session>();
    std::string commit_path;
    if (wanted.commit_path != nullptr) {
      commit_path = wanted.commit_path;
      if (commit_path.empty()) throw sluice::InputError("options.commit_path is empty");
    }
    session->inner = std::make_unique<sluice::host::HostSession>(
        engine->inner, static_cast<sluice::host::StatePlace>(wanted.state), std::move(commit_path));
    *out = session.release();
  });
}

void sluice_session_destroy(sluice_session* session) {
  if (!sluice::capi::is_forked_child()) delete session;
}

sluice_status sluice_session_add_group(sluice_session* session, const sluice_group_options* options,
                                       sluice_group* out) {
  return run_call("sluice_session_add_group", [&] {
    Turn turn(session);
    required(out, "out");
    out->index = turn->add_group(sluice::capi::group_options(
        sluice::capi::read_or_default(options, SLUICE_GROUP_OPTIONS_INIT, "options")));
  });
}

sluice_status sluice_session_set_group(sluice_session* session, sluice_group group,
                                       const sluice_group_options* options) {
  return run_call("sluice_session_set_group", [&] {
    Turn turn(session);
    turn->set_group(group.index,
                    sluice::capi::group_options(sluice::capi::read_struct(options, "options")));
  });
}

sluice_status sluice_session_add_unit(sluice_session* session, const char* name, sluice_unit* out) {
  return run_call("sluice_session_add_unit", [&] {
    Turn turn(session);
    required(out, "out");
    out->index = turn->add_unit(sluice::capi::required_name(name, "name"));
  });
}

sluice_status sluice_session_add_param(sluice_session* session, const sluice_param_options* options,
                                       sluice_param* out) {
  return run_call("sluice_session_add_param", [&] {
    Turn turn(session);
    required(out, "out");
    out->index = turn->add_parameter(
        sluice::capi::parameter_options(sluice::capi::read_struct(options, "options")));
  });
}

sluice_status sluice_session_seal(sluice_session* session) {
  return run_call("sluice_session_seal", [&] { Turn(session)->seal(); });
}

sluice_status sluice_session_weight(sluice_session* session, sluice_param param,
                                    sluice_tensor* out) {
  return run_call("sluice_session_weight", [&] {
    Turn turn(session);
    sluice::capi::write_home(*turn, param, sluice::StateKind::kWeight, out);
  });
}

sluice_status sluice_session_grad(sluice_session* session, sluice_param param, sluice_tensor* out) {
  return run_call("sluice_session_grad", [&] {
    Turn turn(session);
    sluice::capi::write_home(*turn, param, sluice::StateKind::kGradient, out);
  });
}

sluice_status sluice_session_give_grad(sluice_session* session, sluice_param param,
                                       const sluice_tensor* grad) {
  return run_call("sluice_session_give_grad", [&] {
    Turn turn(session);
    const sluice_tensor given = sluice::capi::read_struct(grad, "grad");
    sluice::capi::check_gradient(turn->parameter(param.index), given);
    turn->give_gradient(param.index, given.data);
  });
}

sluice_status sluice_session_update(sluice_session* session, sluice_update_info* info) {
  return run_call("sluice_session_update", [&] {
    Turn turn(session);
    sluice_update_info wanted =
        sluice::capi::read_or_default(info, SLUICE_UPDATE_INFO_INIT, "info");
    wanted.grad_norm = turn->update(sluice::capi::update_request(wanted));
    if (info != nullptr) sluice::capi::write_struct(info, wanted, "info");
  });
}

sluice_status sluice_session_update_begin(sluice_session* session, const sluice_update_info* info) {
  return run_call("sluice_session_update_begin", [&] {
    Turn turn(session);
    turn->begin_update(sluice::capi::update_request(
        sluice::capi::read_or_default(info, SLUICE_UPDATE_INFO_INIT, "info")));
  });
}

sluice_status sluice_session_update_next(sluice_session* session, sluice_update_part* out) {
  return run_call("sluice_session_update_next", [&] {
    Turn turn(session);
    // Looked at first: a part that cannot be handed out must not be taken.
    sluice::capi::check_struct(out, "out");
    const std::optional<sluice::host::CallerPart> found = turn->next_part();
    sluice_update_part part = SLUICE_UPDATE_PART_INIT;
    part.grad_norm = turn->grad_norm();
    if (found) {
      part.param.index = found->parameter;
      part.grad_factor = found->gradient_factor;
      part.weight = found->weight;
      part.grad = found->gradient;
      part.state[0] = found->moments[0];
      part.state[1] = found->moments[1];
    }
    sluice::capi::write_struct(out, part, "out");
  });
}

sluice_status sluice_session_kind_dtype(sluice_session* session, sluice_param param, int32_t kind,
                                        int32_t* out) {
  return run_call("sluice_session_kind_dtype", [&] {
    Turn turn(session);
    required(out, "out");
    *out = sluice::capi::number_of(turn->layout(param.index, sluice::capi::kind_of(kind)).dtype);
  });
}

sluice_status sluice_session_read(sluice_session* session, sluice_param param, int32_t kind,
                                  uint64_t first, uint64_t count, void* into, uint64_t bytes) {
  return run_call("sluice_session_read", [&] {
    Turn turn(session);
    const sluice::host::KeptState of = sluice::capi::kind_of(kind);
    sluice::capi::check_bytes(*turn, param, of, count, bytes);
    turn->read(param.index, of, first, count, &required(static_cast<std::byte*>(into), "into"));
  });
}

sluice_status sluice_session_write(sluice_session* session, sluice_param param, int32_t kind,
                                   uint64_t first, uint64_t count, const void* from,
                                   uint64_t bytes) {
  return run_call("sluice_session_write", [&] {
    Turn turn(session);
    const sluice::host::KeptState of = sluice::capi::kind_of(kind);
    sluice::capi::check_bytes(*turn, param, of, count, bytes);
    const std::byte& data = required(static_cast<const std::byte*>(from), "from");
    if (reinterpret_cast<std::uintptr_t>(from) %
            sluice::capi::elem_bytes_of(turn->layout(param.index, of).dtype) !=
        0) {
      throw sluice::InputError("from is not aligned to its elements");
    }
    turn->write(param.index, of, first, count, &data);
  });
}

sluice_status sluice_session_save(sluice_session* session, const char* path) {
  return run_call("sluice_session_save", [&] {
    Turn turn(session);
    turn->save(sluice::capi::required_text(path, "path"));
  });
}

sluice_status sluice_session_load(sluice_session* session, const char* path) {
  return run_call("sluice_session_load", [&] {
    Turn turn(session);
    turn->load(sluice::capi::required_text(path, "path"));
  });
}

sluice_status sluice_session_commit(sluice_session* session) {
  return run_call("sluice_session_commit", [&] { Turn(session)->commit(); });
}

sluice_status sluice_session_set_updates(sluice_session* session, uint64_t updates) {
  return run_call("sluice_session_set_updates", [&] { Turn(session)->set_update_count(updates); });
}

sluice_status sluice_session_get_stats(sluice_session* session, sluice_session_stats* out) {
  return run_call("sluice_session_get_stats", [&] {
    Turn turn(session);
    const sluice::host::HostSession::Statistics found = turn->statistics();
    sluice_session_stats stats = {};
    stats.sealed = found.units > 0 ? 1 : 0;
    stats.updates = found.updates;
    stats.planned_pinned_bytes = found.planned_bytes[SLUICE_TIER_PINNED];
    stats.planned_storage_bytes = found.planned_bytes[SLUICE_TIER_STORAGE];
    stats.units = found.units;
    stats.stored_units = found.stored_units;
    stats.storage_read_bytes = found.storage_read_bytes;
    stats.storage_write_bytes = found.storage_write_bytes;
    stats.update_ns = static_cast<std::uint64_t>(found.update_seconds * 1e9);
    sluice::capi::write_struct(out, stats, "out");
  });
}
