// A program's state as named tensors: filled with initial values, saved, loaded, hashed, exported.
//
// Names and types in a file: stored_tensors.hpp. Everything streams through StateStore a piece at a
// time; nothing is held whole.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.hpp"
#include "engine/checkpoint/stored_tensors.hpp"
#include "engine/model/parameter_table.hpp"
#include "engine/runtime/state_store.hpp"
#include "kernels/host/parallel.hpp"

namespace sluice::checkpoint {

class ModelState {
 public:
  // All must outlive it.
  ModelState(const model::ParameterSpace& space, const model::ParameterTable& table,
             runtime::StateStore& store)
      : space_(space), table_(table), store_(store) {}

  const model::ParameterSpace& space() const { return space_; }
  // Whether this rank writes the files of the state.
  bool writes_files() const { return store_.writes_files(); }

  // Every element is a function of (seed, tensor name, element) alone; moments are zero.
  void initialize(std::uint64_t seed);

  // The bytes of the files that save() and export_weights() write.
  static std::uint64_t saved_bytes(const model::ParameterSpace& space,
                                   const model::ParameterTable& table);
  static std::uint64_t exported_bytes(const model::ParameterSpace& space,
                                      const model::ParameterTable& table);
  // Writes all state kinds; the file is on the disk when this returns. has_digest: with one of its
  // own (SafetensorsReader::check_digest), for a file that no manifest vouches for.
  using Notes = std::map<std::string, std::string>;  // metadata of the file
  void save(const std::string& path, const Notes& notes = {}, bool has_digest = false);
  // Throw InputError naming the first tensor that differs (missing, other dtype or shape), before
  // anything is changed: of the weights, and of all state.
  static void check_weights(const SafetensorsReader& reader, const model::ParameterSpace& space,
                            const model::ParameterTable& table);
  static void check(const SafetensorsReader& reader, const model::ParameterSpace& space,
                    const model::ParameterTable& table);
  void load(const SafetensorsReader& reader);
  // The value of weights_hash() after load(reader). The reader must have passed check().
  static std::string weights_hash_in(const SafetensorsReader& reader,
                                     const model::ParameterSpace& space,
                                     const model::ParameterTable& table);

  // Weights alone, as safetensors.
  void export_weights(const std::string& path);
  // The hash covers names, dtypes, shapes and bytes of the weights, in the model's order.
  std::string weights_hash();

 private:
  const kernels::OptimizerOptions& options(std::size_t unit) const { return table_.options(unit); }
  void write(const std::string& path, const StoredTensors& tensors, const Notes& notes,
             bool has_digest);
  // Calls visitor(data, bytes) for consecutive parts of a tensor's column, which every rank gets.
  // All ranks call it.
  using TensorVisitor = std::function<void(std::byte* data, std::uint64_t bytes)>;
  void visit_tensor(std::size_t unit, const StateColumn& column, const model::PlacedTensor& tensor,
                    const TensorVisitor& visitor);
  void visit_joined(std::size_t unit, const StateColumn& column, const model::PlacedTensor& tensor,
                    const TensorVisitor& visitor);
  void zero(const StateColumn& column, std::size_t unit, std::uint64_t elems);
  void fill_weights(std::size_t unit, std::uint64_t seed);
  // Elements [begin, end) of the unit's masters.
  std::vector<float> initial_values(const model::UnitLayout& layout, std::uint64_t seed,
                                    std::uint64_t begin, std::uint64_t end) const;

  const model::ParameterSpace& space_;
  const model::ParameterTable& table_;
  runtime::StateStore& store_;
  kernels::host::Parallel parallel_{0};
};

}  // namespace sluice::checkpoint
