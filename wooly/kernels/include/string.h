/* Nothing of it can be had in a kernel; here so that sources which include it compile. */
#pragma once
