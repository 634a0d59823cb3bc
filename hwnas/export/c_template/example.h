/* $title

   The functions of example.cc, for C and C++. Written by hwnas. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Prepare the network; returns false if the arena is too small or an operator is missing. */
bool hwnas_setup(void);

/* Run the network on HWNAS_INPUTS pixels and write HWNAS_OUTPUTS values; returns false if an
   operator fails. */
bool hwnas_run(const uint8_t *pixels, float *values);

#ifdef __cplusplus
}
#endif
