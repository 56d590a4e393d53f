#include "offload/request_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "offload/queued_engine.hpp"

namespace sluice::offload {
namespace {

using enum StorageOp;

ActiveRequestPtr made(StorageOp op, std::uint64_t needed_by, std::uint64_t sequence) {
  StorageRequest request;
  request.op = op;
  request.needed_by = needed_by;
  return std::make_shared<ActiveRequest>(ActiveRequest{
      request, nullptr, nullptr, PieceCursor(request, {}, 4096), 0, 0, false, nullptr, sequence});
}

bool is_before(const ActiveRequestPtr& a, const ActiveRequestPtr& b) {
  return std::pair(a->request.needed_by, a->sequence) <
         std::pair(b->request.needed_by, b->sequence);
}

// A request of one piece: it starts and is gone.
ActiveRequestPtr take(RequestQueue& queue, bool reads = true, bool writes = true) {
  const ActiveRequestPtr next = queue.next(reads, writes);
  if (next) {
    queue.count_start(next);
    queue.erase(next);
  }
  return next;
}

TEST(RequestQueue, TheMostUrgentGoesFirstAndOfThoseTheOldest) {
  RequestQueue queue;
  std::mt19937_64 random(7);
  std::vector<ActiveRequestPtr> all;
  for (std::uint64_t i = 0; i < 60; ++i) {
    all.push_back(made(i % 2 == 0 ? kRead : kWrite, random() % 10, i));
    queue.push(all.back());
  }
  std::sort(all.begin(), all.end(), is_before);
  for (const ActiveRequestPtr& expected : all) EXPECT_EQ(take(queue), expected);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(take(queue), nullptr);
}

TEST(RequestQueue, ADirectionThatMayNotStartIsLeftOut) {
  RequestQueue queue;
  const auto read = made(kRead, 9, 0);
  const auto write = made(kWrite, 1, 1);
  queue.push(read);
  queue.push(write);
  EXPECT_EQ(queue.next(true, false), read);
  EXPECT_EQ(queue.next(false, true), write);
  EXPECT_EQ(queue.next(true, true), write);
  EXPECT_EQ(queue.next(false, false), nullptr);
  queue.erase(write);
  queue.erase(write);  // is gone already
  EXPECT_EQ(queue.next(false, true), nullptr);
}

TEST(RequestQueue, TheOldestIsOvertakenABoundedNumberOfTimes) {
  RequestQueue queue;
  const auto patient = made(kRead, 1000, 0);
  queue.push(patient);
  for (std::uint64_t i = 1; i <= 2 * RequestQueue::kMostOvertakes; ++i) {
    queue.push(made(kRead, 1, i));
  }
  std::uint32_t before = 0;
  while (take(queue) != patient) ++before;
  EXPECT_EQ(before, RequestQueue::kMostOvertakes);
}

// A large request is cut in many pieces: it stands in the queue while they start.
TEST(RequestQueue, PiecesOfOneRequestCountAsOvertakingToo) {
  RequestQueue queue;
  const auto patient = made(kWrite, 2, 0);
  const auto large = made(kWrite, 1, 1);
  queue.push(patient);
  queue.push(large);
  std::uint32_t before = 0;
  while (queue.next(true, true) != patient) {
    queue.count_start(large);
    ++before;
  }
  EXPECT_EQ(before, RequestQueue::kMostOvertakes);
  queue.erase(patient);
  EXPECT_EQ(queue.next(true, true), large);
}

// On an engine with threads for both (posix), a steady stream of reads would keep writes out.
TEST(RequestQueue, ADirectionIsPassedOverABoundedNumberOfTimes) {
  for (const StorageOp patient_op : {kRead, kWrite}) {
    const StorageOp other = patient_op == kRead ? kWrite : kRead;
    RequestQueue queue;
    const auto patient = made(patient_op, 1000, 0);
    queue.push(patient);
    std::uint32_t before = 0;
    for (std::uint64_t i = 1;; ++i) {
      queue.push(made(other, 1, i));
      if (take(queue) == patient) break;
      ASSERT_LE(++before, RequestQueue::kMostOvertakes);
    }
    EXPECT_EQ(before, RequestQueue::kMostOvertakes);
    // From then on it counts anew, and a direction in which nothing waits counts nothing.
    EXPECT_EQ(queue.next(true, true)->request.op, other);
  }
}

// A request that may not start (its slots are taken) does not keep the other direction back.
TEST(RequestQueue, ADirectionThatMayNotStartDelaysNoOther) {
  RequestQueue queue;
  queue.push(made(kWrite, 1000, 0));
  for (std::uint64_t i = 1; i <= 2 * RequestQueue::kMostOvertakes; ++i) {
    queue.push(made(kRead, 1, i));
    ASSERT_EQ(take(queue, true, false)->request.op, kRead);
  }
}

// Against a list that is searched from its begin to its end each time.
TEST(RequestQueue, RandomSequencesAgreeWithAList) {
  std::mt19937_64 random(11);
  RequestQueue queue;
  std::vector<ActiveRequestPtr> model;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const auto op = random() % 2 == 0 ? kRead : kWrite;
    if (random() % 2 == 0 || model.empty()) {
      model.push_back(made(op, random() % 50, i));
      queue.push(model.back());
    } else {
      // Requests are erased in any order, as failures are; nothing starts, so only urgency decides.
      const auto victim = model.begin() + static_cast<std::ptrdiff_t>(random() % model.size());
      queue.erase(*victim);
      queue.erase(*victim);
      model.erase(victim);
    }
    const auto first = std::min_element(model.begin(), model.end(), is_before);
    ASSERT_EQ(queue.next(true, true), first == model.end() ? nullptr : *first);
    ASSERT_EQ(queue.empty(), model.empty());
  }
}

}  // namespace
}  // namespace sluice::offload
