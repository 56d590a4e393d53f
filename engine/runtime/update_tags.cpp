#include "engine/runtime/update_tags.hpp"

#include <array>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/memory_kinds.hpp"
#include "engine/runtime/run_memory.hpp"

namespace sluice::runtime {
namespace {

// An update cuts whole blocks.
static_assert(kernels::UpdateGuard::kElems == kLawBlockElems);

// The parts of elements [begin, end) of each piece, made on the stack, since this runs per block.
class Parts {
 public:
  Parts(const std::vector<UpdateTags::Piece>& pieces, std::int64_t begin, std::int64_t end) {
    SLUICE_CHECK(pieces.size() <= parts_.size());
    for (const auto& [whole, dtype] : pieces) {
      const std::uint64_t offset = bytes_of(dtype, static_cast<std::uint64_t>(begin));
      const std::uint64_t bytes = bytes_of(dtype, static_cast<std::uint64_t>(end)) - offset;
      SLUICE_CHECK(offset + bytes <= whole.bytes);
      parts_[count_++] = {whole.range, whole.offset_bytes + offset, whole.data + offset, bytes};
    }
  }
  std::span<const offload::TaggedSpace::Part> all() const { return {parts_.data(), count_}; }

 private:
  std::array<offload::TaggedSpace::Part, kStateKindCount> parts_;
  std::size_t count_ = 0;
};

}  // namespace

UpdateTags::UpdateTags(offload::TaggedSpace& storage, std::vector<Piece> read,
                       std::vector<Piece> written)
    : storage_(storage), read_(std::move(read)), written_(std::move(written)) {
  for (const std::vector<Piece>* pieces : {&read_, &written_}) {
    for (const Piece& piece : *pieces) storage_.check_whole_blocks(piece.part);
  }
}

void UpdateTags::before(std::int64_t begin, std::int64_t end) {
  if (!read_.empty()) storage_.verify(Parts(read_, begin, end).all());
}

void UpdateTags::after(std::int64_t begin, std::int64_t end) {
  if (!written_.empty()) storage_.tag(Parts(written_, begin, end).all());
}

}  // namespace sluice::runtime
