// The group of one GPU: copies on its stream, without NCCL and without the network.
#pragma once

#include <memory>

#include "collectives/communicator.hpp"
#include "device/device.hpp"

namespace sluice::collectives {

std::unique_ptr<Communicator> make_single_gpu_communicator(device::Stream& stream);

}  // namespace sluice::collectives
