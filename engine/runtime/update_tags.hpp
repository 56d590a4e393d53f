// Verifies and tags the blocks of a piece of state while an update has them in its cache.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.hpp"
#include "kernels/optimizer.hpp"
#include "offload/tagged_space.hpp"

namespace sluice::runtime {

class UpdateTags final : public kernels::UpdateGuard {
 public:
  // The piece of one kind of state: its place in memory and on storage.
  struct Piece {
    offload::TaggedSpace::Part part;
    DType dtype = DType::kF32;
  };

  // read: pieces that came from storage, by TagsBy::kCaller; written: that will go there so.
  UpdateTags(offload::TaggedSpace& storage, std::vector<Piece> read, std::vector<Piece> written);

  // Whether there is nothing to look at.
  bool empty() const { return read_.empty() && written_.empty(); }
  // Throws the errors of TaggedSpace::verify.
  void before(std::int64_t begin, std::int64_t end) override;
  void after(std::int64_t begin, std::int64_t end) override;

 private:
  offload::TaggedSpace& storage_;
  const std::vector<Piece> read_;
  const std::vector<Piece> written_;
};

}  // namespace sluice::runtime
