// Elements of a saved home ascend in this rank's home, too (SavedParts::runs). So all saved homes
// that have some of a home's elements are read side by side, each once from its begin to its end,
// while the home is written from its begin to its end. Of each saved home one piece is in memory.
#include "engine/train/commit_loader.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "base/error.hpp"

namespace sluice::train {
namespace {

using checkpoint::SavedParts;
constexpr std::uint64_t kPieceElems = runtime::StateStore::kWindowElems;

schedule::ElemRange range_of(const schedule::Buffer& home) {
  return {home.first_elem, home.first_elem + home.elems};
}

// Elements of one saved home that a home of this rank has, in order.
class SavedElems {
 public:
  // All but the engine must outlive it.
  SavedElems(offload::StorageEngine& engine, const SavedParts& parts, const SavedParts::Rank& rank,
             const runtime::SavedHome& saved, const schedule::Buffer& home)
      : parts_(parts),
        rank_(rank),
        saved_(saved),
        home_(home),
        space_(std::make_unique<offload::StripedSpace>(engine, rank.found->state.files,
                                                       rank.found->state.space_bytes,
                                                       rank.found->state.shares)),
        reader_(*space_, rank.found->state.run, saved),
        piece_begin_(saved.range().begin),
        piece_end_(piece_begin_) {
    // Parts lie otherwise in each rank's unit, element by element.
    SLUICE_CHECK(parts.alike() || (dtype_bytes(home.dtype) > 0 && !home.per_tensor));
  }

  // Whether the home has elements of the saved one.
  static bool some(const SavedParts& parts, const SavedParts::Rank& rank,
                   const runtime::SavedHome& saved, const schedule::Buffer& home) {
    if (saved.kind != home.kind || saved.unit != home.unit) return false;
    return !runs_of(parts, rank, saved.range(), home).empty();
  }

  // Copies what it has of these elements of the home to `data`. Each call goes on from the one
  // before.
  void copy(const schedule::ElemRange& wanted, std::byte* data) {
    do {
      for (; next_ < runs_.size(); ++next_) {
        SavedParts::Run& run = runs_[next_];
        if (run.to >= wanted.end) return;
        SLUICE_CHECK(run.to >= wanted.begin);
        const std::uint64_t elems = std::min(run.elems, wanted.end - run.to);
        std::memcpy(data + bytes_of(home_.dtype, run.to - wanted.begin),
                    piece_.data() + bytes_of(home_.dtype, run.from - piece_begin_),
                    bytes_of(home_.dtype, elems));
        run = {run.from + elems, run.to + elems, run.elems - elems};
        if (run.elems > 0) return;
      }
    } while (read_piece());
  }

  // Call once all of the home has been copied: reads the rest. Throws InputError if the data differ
  // from the commit.
  void finish() {
    do {
      SLUICE_CHECK(next_ == runs_.size());
    } while (read_piece());
    reader_.finish();
  }

 private:
  static std::vector<SavedParts::Run> runs_of(const SavedParts& parts, const SavedParts::Rank& rank,
                                              const schedule::ElemRange& saved,
                                              const schedule::Buffer& home) {
    const schedule::ElemRange own = range_of(home);
    if (!parts.alike()) return parts.runs(rank, home.unit, saved, own);
    const std::uint64_t begin = std::max(saved.begin, own.begin);
    const std::uint64_t end = std::min(saved.end, own.end);
    if (begin >= end) return {};
    return {{begin, begin, end - begin}};
  }

  // Returns whether there was one.
  bool read_piece() {
    piece_begin_ = piece_end_;
    piece_end_ = std::min(piece_begin_ + kPieceElems, saved_.range().end);
    if (piece_begin_ == piece_end_) return false;
    piece_.resize(bytes_of(home_.dtype, kPieceElems));
    reader_.read(piece_.data(), bytes_of(home_.dtype, piece_end_ - piece_begin_));
    runs_ = runs_of(parts_, rank_, {piece_begin_, piece_end_}, home_);
    next_ = 0;
    return true;
  }

  const SavedParts& parts_;
  const SavedParts::Rank& rank_;
  const runtime::SavedHome& saved_;
  const schedule::Buffer& home_;
  std::unique_ptr<offload::StripedSpace> space_;
  checkpoint::SavedHomeReader reader_;
  // The elements of the saved unit that are in memory, and their runs from the next one on.
  std::uint64_t piece_begin_, piece_end_;
  std::vector<std::byte> piece_;
  std::vector<SavedParts::Run> runs_;
  std::size_t next_ = 0;
};

}  // namespace

void CommitLoader::load(const checkpoint::SavedParts& parts) {
  const std::unique_ptr<offload::StorageEngine> engine = offload::make_storage_engine("posix", {});
  for (const schedule::Buffer* home : homes_) load_home(*home, parts, *engine);
}

// Gaps between tensors are zero, and no saved part has them. Homes that several ranks saved whole
// are read and verified all.
void CommitLoader::load_home(const schedule::Buffer& home, const checkpoint::SavedParts& parts,
                             offload::StorageEngine& engine) {
  std::vector<SavedElems> sources;
  for (const SavedParts::Rank& rank : parts.ranks()) {
    for (const runtime::SavedHome& saved : rank.found->state.homes) {
      if (!SavedElems::some(parts, rank, saved, home)) continue;
      sources.emplace_back(engine, parts, rank, saved, home);
    }
  }
  const std::array<StateKind, 1> kind{home.kind};
  const schedule::ElemRange own = range_of(home);
  store_.visit(kind, home.unit, own.begin, own.end, runtime::StateStore::Access::kWrite,
               [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                 std::memset(data[0], 0, bytes_of(home.dtype, end - begin));
                 for (SavedElems& source : sources) source.copy({begin, end}, data[0]);
               });
  for (SavedElems& source : sources) source.finish();
}

}  // namespace sluice::train
