// A model's state as named tensors: filled with initial values, saved, loaded, hashed, exported.
//
// Weights are named as the model names them; a checkpoint holds beside "NAME" also
// "master.NAME", "moment1.NAME" and "moment2.NAME" (fp32 training: no master). Everything streams
// through StateStore a piece at a time; nothing is held whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/train/safetensors.hpp"
#include "kernels/host/parallel.hpp"

namespace sluice {

class ModelState {
 public:
  ModelState(const Model& model, StateStore& store, DType weight_dtype)
      : model_(model), store_(store), weight_dtype_(weight_dtype) {}

  // Every element is a function of (seed, tensor name, element) alone; moments are zero.
  void initialize(std::uint64_t seed);

  // Writes all state kinds; the file is on the disk when this returns.
  void save(const std::string& path);
  // Throws InputError naming the first tensor that differs (missing, other dtype or shape), before
  // anything is changed.
  static void check(const SafetensorsReader& reader, const Model& model, DType weight_dtype);
  void load(const SafetensorsReader& reader);

  // Weights alone, as safetensors.
  void export_weights(const std::string& path);
  // DESIGN section 9: over names, dtypes, shapes and bytes of the weights, in the model's order.
  std::string weights_hash();

 private:
  bool has_master() const { return weight_dtype_ != DType::kF32; }
  static std::vector<StateKind> kinds(DType weight_dtype);
  static std::vector<SafetensorsSpec> specs(const Model& model, DType weight_dtype,
                                            const std::vector<StateKind>& kinds);
  void write(const std::string& path, const std::vector<StateKind>& kinds);
  void fill_piece(const UnitLayout& layout, std::uint64_t seed, std::uint64_t begin,
                  std::uint64_t end, std::span<std::byte* const> data) const;

  const Model& model_;
  StateStore& store_;
  DType weight_dtype_;
  host::Parallel parallel_{0};
};

}  // namespace sluice
