// Orders in torch's CSV: there and back, the files of others, and hostile text.
#include "engine/schedule/orders/order_csv.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "engine/schedule/orders/check_order.hpp"
#include "engine/schedule/orders/message_order.hpp"
#include "tests/engine/schedule/orders/order_examples.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

std::string data_file(const std::string& name) {
  std::ifstream in(std::string(SLUICE_TEST_DATA) + "/" + name, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_FALSE(text.str().empty()) << name;
  return text.str();
}

TEST(OrderCsv, GoesThereAndBack) {
  for (const OrderKind kind : all_order_kinds()) {
    for (const std::int32_t stages_each : stage_counts_of(kind)) {
      for (const std::int32_t microbatches : {1, 3, 8}) {
        const PipelineOrder order = make_order(kind, 3, stages_each, microbatches);
        EXPECT_EQ(order_from_csv(order_to_csv(order)), order);
        const PipelineOrder listed = list_messages(order);
        EXPECT_EQ(order_from_csv(order_to_csv(listed)), listed);
      }
    }
  }
  EXPECT_EQ(order_to_csv(make_1f1b_order(2, 2)), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(order_to_csv(list_messages(make_1f1b_order(2, 1))),
            "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
}

// Pauses, blanks, line ends of other systems, and collectives without a micro-batch.
TEST(OrderCsv, ReadsWhatTorchWrites) {
  const PipelineOrder order = order_from_csv("0UNSHARD, 0F0,,,0B0 ,0RESHARD,0REDUCE_GRAD\r\n\n");
  ASSERT_EQ(order.ranks(), 1);
  EXPECT_EQ(order_to_csv(order), "0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n");
  EXPECT_EQ(check_order(order), std::vector<std::string>{});
  const PipelineOrder overlap = order_from_csv("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n");
  EXPECT_TRUE(overlap.actions[0][2].with_next);
  EXPECT_EQ(order_to_csv(overlap), "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n");
}

// Older files write BW for whole backward passes, and B for the first half.
TEST(OrderCsv, KnowsBothDialects) {
  EXPECT_EQ(order_from_csv("0F0,0BW0\n"), order_from_csv("0F0,0B0\n"));
  EXPECT_EQ(order_from_csv("0F0,0B0,0W0\n"), order_from_csv("0F0,0I0,0W0\n"));
}

TEST(OrderCsv, ReadsTheFilesOfOthers) {
  struct Known {
    const char* file;
    std::int32_t ranks, stages, microbatches;
  };
  for (const Known& known :
       {Known{"torch_zb1p_2_ranks.csv", 2, 4, 8}, Known{"torch_dualpipev_4_ranks.csv", 4, 8, 10},
        Known{"torchtitan_4_ranks.csv", 4, 8, 6}}) {
    SCOPED_TRACE(known.file);
    const std::string text = data_file(known.file);
    const PipelineOrder order = order_from_csv(text);
    EXPECT_EQ(order.ranks(), known.ranks);
    EXPECT_EQ(order.stages(), known.stages);
    EXPECT_EQ(order.microbatches, known.microbatches);
    EXPECT_EQ(check_order(order), std::vector<std::string>{});
    EXPECT_EQ(check_sum_order(order), "");
    EXPECT_TRUE(runs_one_by_one(list_messages(order)));
    EXPECT_GE(time_order(order, {}).bubble(), 0);
    EXPECT_EQ(order_from_csv(order_to_csv(order)), order);
  }
  // DualPipeV has a V shape.
  const PipelineOrder v = order_from_csv(data_file("torch_dualpipev_4_ranks.csv"));
  EXPECT_EQ(v.rank_of_stage, (std::vector<std::int32_t>{0, 1, 2, 3, 3, 2, 1, 0}));
}

// Seven schedules of torch 2.15 (data/write_orders). LoopedBFS ends its micro-batches in reverse
// order.
TEST(OrderCsv, ReadsWhatTorchsSchedulesWrite) {
  struct Known {
    const char* file;
    std::int32_t ranks, stages, microbatches;
    const char* descends;
  };
  for (const Known& known :
       {Known{"written_gpipe_4_ranks_1_stages.csv", 4, 4, 6, ""},
        Known{"written_interleaved1f1b_4_ranks_1_stages.csv", 4, 4, 6, ""},
        Known{"written_interleaved1f1b_4_ranks_2_stages.csv", 4, 8, 8, ""},
        Known{"written_interleavedzerobubble_4_ranks_2_stages.csv", 4, 8, 8, ""},
        Known{"written_zbvzerobubble_4_ranks_2_stages.csv", 4, 8, 8, ""},
        Known{"written_dualpipev_4_ranks_2_stages.csv", 4, 8, 8, ""},
        Known{"written_loopedbfs_2_ranks_2_stages.csv", 2, 4, 4, "micro-batch"}}) {
    SCOPED_TRACE(known.file);
    const PipelineOrder order = order_from_csv(data_file(known.file));
    EXPECT_EQ(order.ranks(), known.ranks);
    EXPECT_EQ(order.stages(), known.stages);
    EXPECT_EQ(order.microbatches, known.microbatches);
    EXPECT_EQ(check_order(order), std::vector<std::string>{});
    const std::string descends = check_sum_order(order);
    EXPECT_EQ(descends.empty(), std::string(known.descends).empty()) << descends;
    EXPECT_NE(descends.find(known.descends), std::string::npos) << descends;
    EXPECT_TRUE(runs_one_by_one(list_messages(order)));
    EXPECT_GE(time_order(order, {}).bubble(), 0);
    EXPECT_EQ(order_from_csv(order_to_csv(order)), order);
  }
}

// The list that torch 2.15's Schedule1F1B exports begins with micro-batch 1 on the last rank.
TEST(OrderCsv, AnExportWithoutAMicrobatchIsRefused) {
  const PipelineOrder order = order_from_csv(data_file("written_1f1b_4_ranks_1_stages.csv"));
  const std::vector<std::string> problems = check_order(order);
  EXPECT_NE(std::find(problems.begin(), problems.end(), "no rank lists 3F0"), problems.end());
}

TEST(OrderCsv, AWaitNeedsAMessageThatLeft) {
  const std::string head = "0F0,0SEND_F0,0RECV_B0,0B0,";
  const std::string tail = "\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n";
  EXPECT_EQ(check_order(order_from_csv(head + "0WAIT_SEND_F0" + tail)), std::vector<std::string>{});
  const auto problems = check_order(order_from_csv("0WAIT_SEND_F0," + head + tail));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems.front().find("before the message is sent"), std::string::npos);
}

TEST(OrderCsv, RefusesWhatItCannotRead) {
  const auto refusal = [](const std::string& text) {
    return message_of<InputError>([&] { order_from_csv(text); });
  };
  EXPECT_TRUE(holds(refusal(""), "there is no pass"));
  EXPECT_TRUE(holds(refusal("0F0,0X0\n"), "row 1, cell 2: '0X0' is not an action"));
  const std::string nul("0\0X0\n", 5);
  EXPECT_TRUE(holds(refusal(nul), "row 1, cell 1: '0?X0' is not an action, such as 0F0"));
  EXPECT_TRUE(holds(refusal("0F0\n1F0,1F\n"), "row 2, cell 2: '1F' names no micro-batch"));
  EXPECT_TRUE(holds(refusal("F0\n"), "a stage or micro-batch is a whole number"));
  EXPECT_TRUE(holds(refusal("-1F0\n"), "a stage or micro-batch is a whole number"));
  EXPECT_TRUE(holds(refusal("0F0x\n"), "has characters after its micro-batch"));
  EXPECT_TRUE(holds(refusal("99999999999F0\n"), "a whole number from 0 to 65535"));
  EXPECT_TRUE(holds(refusal("0F0\n0B0\n"), "row 2, cell 1: stage 0 is in row 1 too"));
  EXPECT_TRUE(holds(refusal("1F0\n"), "no row names stage 0"));
  EXPECT_TRUE(holds(refusal("(0F0;0B0)TOGETHER\n"), "ends with )OVERLAP_F_B"));
  EXPECT_TRUE(holds(refusal("(0F0)OVERLAP_F_B\n"), "overlaps nothing"));
  EXPECT_TRUE(holds(refusal("(0F0;0B0\n"), "ends with )OVERLAP_F_B"));
}

// A file of two cells cannot ask for tables of a billion.
TEST(OrderCsv, OfFewCellsAsksForLittleMemory) {
  const PipelineOrder order = order_from_csv("0F1048575\n1F0\n");
  EXPECT_TRUE(holds(check_order(order).at(0), "lists 2 actions for 2 stages and 1048576"));
}

}  // namespace
}  // namespace sluice::schedule
