// Numbers of the models that no configuration changes: those of GPT-2 and Llama.
#pragma once

namespace sluice::model {

inline constexpr float kNormEpsilon = 1e-5f;  // of every norm
inline constexpr float kRopeBase = 10000.0f;  // of rotary positions

}  // namespace sluice::model
