// A saved home is read in pieces of whole blocks, as they are tagged. The elements of a piece that
// lie in parts of tensors go to a range of this rank's unit that is about as long, so that the
// range is read, changed and written once for each piece.
#include "engine/train/commit_loader.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "base/error.hpp"

namespace sluice::train {
namespace {

using Access = runtime::StateStore::Access;
constexpr std::uint64_t kPieceElems = runtime::StateStore::kWindowElems;

schedule::ElemRange range_of(const schedule::Buffer& home) {
  return {home.first_elem, home.first_elem + home.elems};
}

}  // namespace

void CommitLoader::load(const checkpoint::SavedParts& parts) {
  // Gaps between tensors are zero, and no saved part has them.
  for (const schedule::Buffer* home : homes_) {
    if (!parts.alike()) clear(*home);
  }
  for (const checkpoint::SavedParts::Rank& rank : parts.ranks()) load_rank(parts, rank);
}

void CommitLoader::load_rank(const checkpoint::SavedParts& parts,
                             const checkpoint::SavedParts::Rank& rank) {
  const checkpoint::SavedState& state = rank.found->state;
  const std::unique_ptr<offload::StorageEngine> engine = offload::make_storage_engine("posix", {});
  offload::StripedSpace space(*engine, state.files, state.space_bytes, state.shares);
  for (const schedule::Buffer* home : homes_) {
    for (const runtime::SavedHome& saved : state.homes) {
      if (saved.kind != home->kind || saved.unit != home->unit) continue;
      const schedule::ElemRange own = range_of(*home);
      checkpoint::SavedHomeReader reader(space, state.run, saved);
      if (!parts.alike()) {
        if (parts.runs(rank, home->unit, saved.range(), own).empty()) continue;
        load_parts(*home, saved, parts, rank, reader);
      } else if (saved.range() == own) {
        load_whole(*home, reader);
      } else if (saved.range().begin < own.end && own.begin < saved.range().end) {
        load_overlap(*home, saved, reader);
      } else {
        continue;
      }
      reader.finish();
    }
  }
}

void CommitLoader::load_whole(const schedule::Buffer& home, checkpoint::SavedHomeReader& reader) {
  const std::array<StateKind, 1> kind{home.kind};
  store_.visit(kind, home.unit, home.first_elem, home.first_elem + home.elems, Access::kWrite,
               [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                 reader.read(data[0], bytes_of(home.dtype, end - begin));
               });
}

void CommitLoader::load_overlap(const schedule::Buffer& home, const runtime::SavedHome& saved,
                                checkpoint::SavedHomeReader& reader) {
  std::vector<std::byte> piece(bytes_of(home.dtype, kPieceElems));
  const std::array<StateKind, 1> kind{home.kind};
  for (std::uint64_t at = saved.range().begin; at < saved.range().end; at += kPieceElems) {
    const std::uint64_t piece_end = std::min(at + kPieceElems, saved.range().end);
    reader.read(piece.data(), bytes_of(home.dtype, piece_end - at));
    const std::uint64_t from = std::max(at, home.first_elem);
    const std::uint64_t to = std::min(piece_end, home.first_elem + home.elems);
    if (from >= to) continue;
    store_.visit(kind, home.unit, from, to, Access::kWrite,
                 [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                   std::memcpy(data[0], piece.data() + bytes_of(home.dtype, begin - at),
                               bytes_of(home.dtype, end - begin));
                 });
  }
}

void CommitLoader::load_parts(const schedule::Buffer& home, const runtime::SavedHome& saved,
                              const checkpoint::SavedParts& parts,
                              const checkpoint::SavedParts::Rank& rank,
                              checkpoint::SavedHomeReader& reader) {
  const std::uint64_t bytes = dtype_bytes(home.dtype);
  SLUICE_CHECK(bytes > 0 && !home.per_tensor);
  std::vector<std::byte> piece(kPieceElems * bytes);
  const std::array<StateKind, 1> kind{home.kind};
  const std::uint64_t home_end = range_of(home).end;
  for (std::uint64_t at = saved.range().begin; at < saved.range().end; at += kPieceElems) {
    const std::uint64_t piece_end = std::min(at + kPieceElems, saved.range().end);
    reader.read(piece.data(), (piece_end - at) * bytes);
    const auto runs = parts.runs(rank, home.unit, {at, piece_end}, range_of(home));
    if (runs.empty()) continue;
    const std::uint64_t first = runs.front().to / kLawBlockElems * kLawBlockElems;
    const std::uint64_t last =
        std::min(round_up(runs.back().to + runs.back().elems, kLawBlockElems), home_end);
    store_.visit(kind, home.unit, first, last, Access::kUpdate,
                 [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                   for (const checkpoint::SavedParts::Run& run : runs) {
                     const std::uint64_t from = std::max(run.to, begin);
                     const std::uint64_t to = std::min(run.to + run.elems, end);
                     if (from >= to) continue;
                     std::memcpy(data[0] + (from - begin) * bytes,
                                 piece.data() + (run.from - at + from - run.to) * bytes,
                                 (to - from) * bytes);
                   }
                 });
  }
}

void CommitLoader::clear(const schedule::Buffer& home) {
  const std::array<StateKind, 1> kind{home.kind};
  store_.visit(kind, home.unit, home.first_elem, home.first_elem + home.elems, Access::kWrite,
               [&](std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data) {
                 std::memset(data[0], 0, bytes_of(home.dtype, end - begin));
               });
}

}  // namespace sluice::train
