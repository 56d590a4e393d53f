// The layout of a saved unit is that of a model with the saving rank's share. The slices in its
// record must be the ones of that layout, so that a version that cuts tensors otherwise is refused.
#include "engine/checkpoint/saved_parts.hpp"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.hpp"

namespace sluice::checkpoint {
namespace {

// A number of ranks in the job's settings; 1 if there is none.
std::int64_t group_size(const DurableFound& found, const char* key) {
  const auto setting = found.manifest.settings.find(key);
  if (setting == found.manifest.settings.end()) return 1;
  const std::string& text = setting->second;
  std::int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error == std::errc{} && end == text.data() + text.size() && size > 0) return size;
  throw InputError(found.log + ": '" + key + "' must be a whole number above 0, and is " + text);
}

// All ranks of a job have its settings. One rank's are read, so records that do not agree are of no
// use to the others.
void check_settings_agree(const DurableFound& found) {
  const auto text = [](const std::map<std::string, std::string>& settings, const std::string& key) {
    const auto at = settings.find(key);
    return at == settings.end() ? std::string("no such setting") : at->second;
  };
  const auto& first = found.manifest.settings;
  for (const DurableFound& rank : found.other_ranks) {
    auto all = rank.manifest.settings;
    all.insert(first.begin(), first.end());
    for (const auto& [key, ignored] : all) {
      const std::string own = text(rank.manifest.settings, key), firsts = text(first, key);
      if (own == firsts) continue;
      throw InputError(rank.log + ": says " + key + " = " + own + ", and " + found.log + " says " +
                       firsts + ": records of one commit have the same settings");
    }
  }
}

std::string text_of(const SavedSlice& saved) {
  const model::TensorSlice& slice = saved.slice;
  return "rows " + std::to_string(slice.row) + " to " + std::to_string(slice.row + slice.rows) +
         " and columns " + std::to_string(slice.col) + " to " +
         std::to_string(slice.col + slice.cols) + " of '" + saved.tensor + "'";
}

std::string name_of_home(const schedule::Buffer& home) {
  return std::string(state_kind_name(home.kind)) + " of unit " + std::to_string(home.unit);
}

}  // namespace

SavedParts::SavedParts(const DurableFound& found, const model::Model& model) : model_(model) {
  check_settings_agree(found);
  const std::int64_t tensor = group_size(found, "parallel.tensor");
  const std::int64_t contexts = group_size(found, "parallel.context");
  const model::TensorShare& share = model.share();
  const bool same = tensor == share.ranks;
  if (!same && !model::can_share(model.shape(), tensor)) {
    throw InputError(found.log + ": says parallel.tensor = " + std::to_string(tensor) +
                     ", and this model has no parts for as many ranks");
  }
  if (found.state.ranks % tensor != 0 || found.state.ranks / tensor % contexts != 0) {
    throw InputError(found.log + ": says parallel.tensor = " + std::to_string(tensor) +
                     " and parallel.context = " + std::to_string(contexts) + ", which " +
                     std::to_string(found.state.ranks) + " ranks cannot be");
  }
  for (std::int64_t place = 0; place < tensor && !same; ++place) {
    others_.push_back(
        std::make_unique<model::Model>(model.shape(), model::TensorShare{place, tensor}));
  }
  for (std::size_t rank = 0; rank <= found.other_ranks.size(); ++rank) {
    const auto number = static_cast<std::int64_t>(rank);
    const std::int64_t place = number % tensor;
    // All ranks of a context group have the same.
    if (number / tensor % contexts != share.context_rank % contexts) continue;
    if (same && place != share.rank) continue;
    ranks_.push_back({rank == 0 ? &found : &found.other_ranks[rank - 1],
                      same ? &model : others_[static_cast<std::size_t>(place)].get()});
  }
  if (ranks_.empty()) {
    throw InputError(found.log +
                     ": the commits of other ranks are missing: put the directories "
                     "rank-1, rank-2 and so on back next to it");
  }
  for (const Rank& rank : ranks_) check_slices(rank);
}

// The first difference decides on the words: a slice that no rank of that place has, or one that is
// missing.
void SavedParts::check_slices(const Rank& rank) const {
  const SavedState& state = rank.found->state;
  const std::vector<SavedSlice> own = slices_of(*rank.model, units_of(state.homes));
  const auto [mine, saved] =
      std::mismatch(own.begin(), own.end(), state.slices.begin(), state.slices.end());
  if (mine == own.end() && saved == state.slices.end()) return;
  const model::TensorShare& share = rank.model->share();
  const std::string place =
      "rank " + std::to_string(share.rank) + " of a group of " + std::to_string(share.ranks);
  if (saved != state.slices.end() && std::find(own.begin(), own.end(), *saved) == own.end()) {
    throw InputError(rank.found->log + ": names a box that " + place +
                     " does not have: " + text_of(*saved));
  }
  if (mine == own.end()) {
    throw InputError(rank.found->log + ": names a box of " + place + " twice: " + text_of(*saved));
  }
  throw InputError(rank.found->log + ": lacks a box of " + place + ": " + text_of(*mine));
}

// Walks the saved tensors in runs that follow each other in the whole tensor, and each of these in
// runs that this rank has or lacks.
std::vector<SavedParts::Run> SavedParts::runs(const Rank& rank, std::int32_t unit,
                                              const schedule::ElemRange& saved,
                                              const schedule::ElemRange& own) const {
  std::vector<Run> runs;
  const auto& theirs = rank.model->layout(static_cast<std::size_t>(unit)).tensors();
  const auto& mine = model_.layout(static_cast<std::size_t>(unit)).tensors();
  for (std::size_t t = 0; t < theirs.size(); ++t) {
    const model::PlacedTensor &from = theirs[t], &to = mine[t];
    const std::uint64_t end = std::min(saved.end, from.first_elem + from.spec.elems());
    for (std::uint64_t at = std::max(saved.begin, from.first_elem); at < end;) {
      const auto run = from.spec.run_at(at - from.first_elem);
      const std::uint64_t elems = std::min(run.elems, end - at);
      for (std::uint64_t done = 0; done < elems;) {
        const auto part = to.spec.part_run_at(run.first + done);
        const std::uint64_t count = std::min(part.elems, elems - done);
        const std::uint64_t begin = std::max(to.first_elem + part.first, own.begin);
        const std::uint64_t stop = std::min(to.first_elem + part.first + count, own.end);
        if (part.held && begin < stop) {
          runs.push_back({at + done + (begin - to.first_elem - part.first), begin, stop - begin});
        }
        done += count;
      }
      at += elems;
    }
  }
  return runs;
}

void SavedParts::check(const std::vector<const schedule::Buffer*>& homes, bool is_alone) const {
  if (!alike()) {
    for (const schedule::Buffer* home : homes) check_covered(*home);
    return;
  }
  DurableFound own = *ranks_.front().found;
  own.other_ranks.clear();
  for (std::size_t i = 1; i < ranks_.size(); ++i) own.other_ranks.push_back(*ranks_[i].found);
  check_homes(own, homes, is_alone);
}

// The elements of this rank's tensors in the home, each of which some saved home must have.
void SavedParts::check_covered(const schedule::Buffer& home) const {
  if (dtype_bytes(home.dtype) == 0 || home.per_tensor) {
    throw InputError(ranks_.front().found->log + ": is of groups of another size, and the " +
                     name_of_home(home) + " cannot be cut otherwise");
  }
  const schedule::ElemRange own{home.first_elem, home.first_elem + home.elems};
  std::vector<schedule::ElemRange> saved;
  for (const Rank& rank : ranks_) {
    for (const runtime::SavedHome& other : rank.found->state.homes) {
      if (other.kind != home.kind || other.unit != home.unit) continue;
      if (other.dtype != home.dtype) {
        throw InputError(rank.found->log + ": is of another model: the " + name_of_home(home) +
                         " is of another dtype");
      }
      for (const Run& run : runs(rank, home.unit, other.range(), own)) {
        saved.push_back({run.to, run.to + run.elems});
      }
    }
  }
  std::sort(saved.begin(), saved.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  auto next = saved.begin();
  std::uint64_t covered = 0;  // all elements of tensors below it are saved
  for (const model::PlacedTensor& tensor :
       model_.layout(static_cast<std::size_t>(home.unit)).tensors()) {
    const std::uint64_t end = std::min(own.end, tensor.first_elem + tensor.spec.elems());
    covered = std::max({covered, own.begin, tensor.first_elem});
    for (; next != saved.end() && next->begin <= covered; ++next) {
      covered = std::max(covered, next->end);
    }
    if (covered >= end) continue;
    throw InputError(ranks_.front().found->log + ": a part of '" + tensor.spec.name + "', " +
                     name_of_home(home) +
                     ", is missing: put the directories rank-1, rank-2 and so on back next to it, "
                     "or this is another model");
  }
}

}  // namespace sluice::checkpoint
