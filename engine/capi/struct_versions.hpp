// The last member that each struct of the header had when it was first published. A program that
// was built with that header says this size for ever, however far the struct has grown since. So
// the sizes here stay when members are appended.
#pragma once

#include <cstddef>

#include "sluice/sluice.h"

namespace sluice::capi {

template <typename Struct>
struct FirstVersion {
  static_assert(sizeof(Struct) == 0, "name the struct's last member in struct_versions.hpp");
};

#define SLUICE_FIRST_VERSION(type, last_member)                                                    \
  template <>                                                                                      \
  struct FirstVersion<type> {                                                                      \
    static constexpr std::size_t kBytes = offsetof(type, last_member) + sizeof(type::last_member); \
  }

SLUICE_FIRST_VERSION(sluice_error_info, subject);
SLUICE_FIRST_VERSION(sluice_engine_options, link_bandwidth_bytes_per_s);
SLUICE_FIRST_VERSION(sluice_usage, live_by_category);
SLUICE_FIRST_VERSION(sluice_allocator_options, recorded_events);
SLUICE_FIRST_VERSION(sluice_allocator_stats, remapped_pages);
SLUICE_FIRST_VERSION(sluice_session_options, state);
SLUICE_FIRST_VERSION(sluice_tensor, shape);
SLUICE_FIRST_VERSION(sluice_group_options, momentum);
SLUICE_FIRST_VERSION(sluice_param_options, data);
SLUICE_FIRST_VERSION(sluice_update_info, grad_norm);
SLUICE_FIRST_VERSION(sluice_update_part, state);
SLUICE_FIRST_VERSION(sluice_session_stats, update_ns);
SLUICE_FIRST_VERSION(sluice_pager_options, window_bytes);
SLUICE_FIRST_VERSION(sluice_pager_stats, wait_ns);

}  // namespace sluice::capi
